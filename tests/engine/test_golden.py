"""The engine against recordings of the real one: equal, row for row and event for event."""

import pytest
from recordings import Events, OneSecond, compare_steps, counters_of, load, request_of

from kvbench.engine.scheduler import Engine

STEPPED = [
    "small_budget",
    "two_seqs",
    "long_prefill",
    "preempt_abort",
    "resets",
    "no_caching",
    "block64",
    "tiny_pool",
    "abort_preempted",
]


def drain(engine):
    """Step until nothing is left; return tokens, cached tokens and finish reason by request."""
    answers = {}
    while engine.has_work:
        for output in engine.step(0.0).outputs:
            tokens = answers.get(output.request_id, ([], 0, None))[0]
            tokens += output.token_ids
            answers[output.request_id] = (tokens, output.cached_tokens, output.finish_reason)
    return answers


@pytest.mark.parametrize("name", ["serial_public", "serial_tight"])
def test_one_request_at_a_time_hits_what_the_real_engine_hit(name):
    """Every row's cached tokens, and the whole stream of KV events, resets included."""
    recording, events = load(name), Events()
    engine = Engine(recording.config, OneSecond(), events)
    for row in recording.rows.values():
        engine.add(request_of(row))
        tokens, cached, reason = drain(engine)[row["id"]]
        assert (row["id"], tokens, cached, reason) == (
            row["id"],
            row["output"],
            row["cached"],
            row["finish"],
        )
        if row.get("reset_after"):
            assert engine.reset_prefix_cache()
    assert events.rows == recording.header["events"]


@pytest.mark.parametrize("name", ["batch_tight", "batch_preempt"])
def test_all_requests_at_once_hit_what_the_real_engine_hit(name):
    """All 90 rows, and all counters: what is queried, hit, preempted and generated."""
    recording = load(name)
    engine = Engine(recording.config, OneSecond())
    for row in recording.rows.values():
        engine.add(request_of(row))
    cached = {name: answer[1] for name, answer in drain(engine).items()}
    assert cached == {row["id"]: row["cached"] for row in recording.rows.values()}
    assert counters_of(engine) == recording.header["counters"]


@pytest.mark.parametrize("name", ["batch_tight", "batch_preempt"])
def test_it_is_the_same_where_plain_steps_are_run_at_once(name):
    """A simulation in virtual time may skip over steps in which everybody decodes."""
    recording, cached, skipped = load(name), {}, 0
    engine = Engine(recording.config, OneSecond())
    for row in recording.rows.values():
        engine.add(request_of(row))
    while engine.has_work:
        if plain := engine.plain_steps():
            engine.decode(plain)
            skipped += plain
        for output in engine.step(0.0).outputs:
            cached[output.request_id] = output.cached_tokens
    assert cached == {row["id"]: row["cached"] for row in recording.rows.values()}
    assert counters_of(engine) == recording.header["counters"]
    assert skipped > 100


@pytest.mark.parametrize("name", STEPPED)
def test_every_step_schedules_what_the_real_engine_scheduled(name):
    """Tokens per request and their order, preemptions, events, free blocks, after every step."""
    compare_steps(load(name))
