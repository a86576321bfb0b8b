"""Steps in which everybody decodes may be run at once, and nobody can tell the difference."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from recordings import Events, OneSecond

from kvbench.engine.profiles import profile
from kvbench.engine.scheduler import Engine
from kvbench.engine.values import EngineConfig, EngineRequest

ROWS = st.lists(
    st.tuples(
        st.integers(0, 40),  # the step before which it is added
        st.sampled_from("abc"),  # equal letters, equal beginnings
        st.integers(1, 30),  # tokens of the prompt
        st.integers(1, 40),  # tokens of the answer
        st.booleans(),  # whether all its answers are the same as others'
    ),
    min_size=1,
    max_size=8,
)


def engine_of(blocks, size, seqs, budget, sink):
    """Return an engine whose steps take a second."""
    config = EngineConfig(blocks + 1, size, seqs, budget, max_model_len=64)
    return Engine(config, OneSecond(), sink)


def request(number, letter, prompt, output, same):
    """Return the request of a row."""
    start = 1000 * ord(letter)
    own = 0 if same else 1000 * number
    return EngineRequest(str(number), range(start, start + prompt), output, lambda i: own + i)


def play(engine, rows, jump):
    """Run all rows; `jump` says how many of so many plain steps are run at once."""
    waiting = sorted(enumerate(rows), key=lambda row: row[1][0])
    told, now = [], 0
    while waiting or engine.has_work:
        while waiting and waiting[0][1][0] <= now:
            number, (_, *rest) = waiting.pop(0)
            engine.add(request(number, *rest))
        following = waiting[0][1][0] - now if waiting else 1_000
        plain = min(jump(engine.plain_steps()), following)
        if plain:
            engine.decode(plain)
            now += plain
            continue
        result = engine.step(float(now))
        now += 1
        told += [
            (now, out.request_id, out.cached_tokens, out.finish_reason)
            for out in result.outputs
            if out.finish_reason
        ] + [(now, name) for name in result.preempted]
    return told


@given(
    rows=ROWS,
    blocks=st.integers(0, 60),
    size=st.sampled_from([1, 2, 4, 16]),
    seqs=st.integers(1, 5),
    budget=st.integers(1, 40),
    part=st.sampled_from([1.0, 0.5]),
)
def test_steps_run_at_once_leave_what_steps_run_one_by_one_leave(
    rows, blocks, size, seqs, budget, part
):
    """Whatever the pressure: the same ends, the same preemptions, the same stream of events."""
    blocks += -(-70 // size)  # every request fits alone
    one_by_one, at_once = Events(), Events()
    slow = engine_of(blocks, size, seqs, budget, one_by_one)
    fast = engine_of(blocks, size, seqs, budget, at_once)
    assert play(slow, rows, lambda _: 0) == play(fast, rows, lambda most: int(most * part))
    assert one_by_one.rows == at_once.rows
    assert slow.pool.free_order() == fast.pool.free_order()
    assert slow.counters == fast.counters


def test_all_but_the_first_and_the_last_token_of_a_lone_answer_are_plain():
    """Its prompt takes one step and brings the first token; the last step ends it."""
    engine = engine_of(30, 4, 4, 64, None)
    engine.add(request(0, "a", 10, 40, same=False))
    assert engine.plain_steps() == 0
    engine.step(0.0)
    assert engine.plain_steps() == 38
    engine.decode(38)
    assert engine.plain_steps() == 0
    assert engine.step(1.0).outputs[0].finish_reason == "length"
    assert engine.counters.generation_tokens == 40


def test_a_request_that_may_stop_early_is_never_skipped_over():
    """A stop token is known only once it is generated."""
    engine = engine_of(30, 4, 4, 64, None)
    engine.add(EngineRequest("a", [1, 2], 40, lambda i: i, frozenset({9})))
    engine.step(0.0)
    assert engine.plain_steps() == 0


@given(contexts=st.lists(st.integers(1, 100_000), min_size=1, max_size=20))
def test_plain_steps_take_as_long_as_the_same_steps_one_by_one(contexts):
    """To the last bit, so that a simulation may skip or not skip."""
    time = profile("llama-3.1-8b-h100").time
    seconds = time.decode_seconds(len(contexts), sum(contexts), 5)
    expected = [time.step_seconds([(1, n - 1 + step) for n in contexts]) for step in range(5)]
    assert np.array_equal(seconds, expected)
