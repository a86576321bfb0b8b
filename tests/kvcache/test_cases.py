"""Every `.cache` file, played to the pool and to an index that hears only the pool's events."""

import pytest
from cache_backends import IndexBackend, PoolBackend
from cache_language import CASES, Case, verbs_of


@pytest.mark.parametrize("backend", [PoolBackend, IndexBackend])
@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_the_case_holds(path, backend):
    """Its file says in words what must happen; not one of its sentences is passed over."""
    case = Case(path, backend())
    case.play()
    assert case.played == verbs_of(path)


def test_the_cases_say_everything_that_can_be_said():
    """Each verb, and each way in which a request or a reset can end."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in CASES)
    assert set().union(*map(verbs_of, CASES)) == {"pool", "ask", "free", "clear", "events"}
    for word in ("→ hit 0", "→ hit 3", "→ waits", "\nclear\n", "clear refused", "removed"):
        assert word in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pool 2 blocks of 4\nask r1: A → hit 1", "bad.cache:2: ask r1: A → hit 1\n  expected 1"),
        ("pool 2 blocks of 4\n\nevents: stored A", "bad.cache:3: events: stored A"),
        ("pool 2 blocks of 4\nevict A", "bad.cache:2: no such sentence: evict A"),
    ],
)
def test_a_case_that_does_not_hold_is_reported_with_its_line(tmp_path, text, message):
    """The spec must be able to fail."""
    path = tmp_path / "bad.cache"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(AssertionError) as caught:
        Case(path, PoolBackend()).play()
    assert message in str(caught.value)
