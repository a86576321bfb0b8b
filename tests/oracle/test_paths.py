"""Blocks of named spans are the same exactly where the tokens that they stand for are."""

from hypothesis import given
from hypothesis import strategies as st

from kvbench.oracle.paths import Paths, SpanChain, hash_runs

PATHS = st.lists(st.tuples(st.sampled_from(["a", "b", 7]), st.integers(1, 9)), max_size=6)
SIZES = st.sampled_from([1, 2, 3, 4, 16])


def tokens_of(path):
    """Write a path out: a token is a key and its place in the span."""
    return [(key, place) for key, count in path for place in range(count)]


@given(left=PATHS, right=PATHS, size=SIZES)
def test_blocks_are_equal_if_and_only_if_all_tokens_up_to_their_ends_are(left, right, size):
    """A shorter span is the beginning of a longer one behind the same path."""
    paths = Paths()
    first, second = (hash_runs(paths.walk(path), size) for path in (left, right))
    assert len(first) == len(tokens_of(left)) // size
    for i, one in enumerate(first):
        for j, other in enumerate(second):
            same = tokens_of(left)[: (i + 1) * size] == tokens_of(right)[: (j + 1) * size]
            assert (one == other) == (i == j and same)


@given(path=PATHS.filter(bool), answer=st.integers(1, 40), size=SIZES, data=st.data())
def test_a_chain_grows_into_the_blocks_of_prompt_and_answer(path, answer, size, data):
    """One by one or many at once: after n tokens it has the hashes of its first n tokens."""
    paths = Paths()
    prompt = len(tokens_of(path))
    runs = [*paths.walk(path), paths.unique(prompt, answer)]
    chain = SpanChain(runs, prompt, size, "me")
    left = answer
    while left:
        assert chain.hashes == hash_runs(runs, size)[: len(chain) // size]
        count = data.draw(st.integers(1, left))
        if count == 1:
            chain.append(0)
        else:
            chain.extend(range(count), count)
        left -= count
    assert len(chain) == prompt + answer
    assert chain.hashes == hash_runs(runs, size)


def test_unique_runs_share_nothing():
    """Two answers to the same prompt are two."""
    paths = Paths()
    runs = paths.walk([("a", 4)])
    first, second = ([*runs, paths.unique(4, 8)] for _ in range(2))
    assert hash_runs(first, 4)[0] == hash_runs(second, 4)[0]
    assert not set(hash_runs(first, 4)[1:]) & set(hash_runs(second, 4)[1:])
