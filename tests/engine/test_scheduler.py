"""The scheduler's rules one by one, and the laws that hold for every history."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recordings import Events, OneSecond

from kvbench.engine.scheduler import Engine
from kvbench.engine.values import EngineConfig, EngineRequest
from kvbench.errors import InputError


def request(name, tokens, output=1, *, stop=(), salt=None):
    """Return a request for so many tokens, answered with 7, 7, …; names share by first letter."""
    start = 1000 * (ord(name[0]) - ord("a") + 1)
    prompt = list(range(start, start + tokens))
    return EngineRequest(name, prompt, output, lambda _: 7, frozenset(stop), salt)


def engine_of(blocks=100, *, sink=None, **settings):
    """Return an engine with that many usable blocks of four tokens."""
    defaults = {"block_size": 4, "max_num_seqs": 8, "max_num_batched_tokens": 32}
    config = EngineConfig(blocks + 1, max_model_len=256, **(defaults | settings))
    return Engine(config, OneSecond(), sink)


def steps(engine, count):
    """Return what each of the next steps scheduled."""
    return [engine.step(float(number)).scheduled_tokens for number in range(count)]


def test_a_long_prompt_is_cut_to_the_budget_and_the_rest_of_the_budget_goes_to_the_next():
    """Chunked prefill: 50 tokens in steps of 32; the answer's tokens come one a step."""
    engine = engine_of()
    engine.add(request("a", 50, output=3))
    engine.add(request("b", 20, output=1))
    assert steps(engine, 5) == [{"a": 32}, {"a": 18, "b": 14}, {"a": 1, "b": 6}, {"a": 1}, {}]


def test_a_request_gets_its_first_token_when_its_prompt_is_computed_and_not_before():
    """Chunks bring nothing out; the step that ends the prompt brings one token."""
    engine = engine_of()
    engine.add(request("a", 40, output=2))
    first, second, third = (engine.step(float(number)) for number in range(3))
    assert first.outputs == ()
    assert [output.token_ids for output in second.outputs + third.outputs] == [(7,), (7,)]
    assert third.outputs[0].finish_reason == "length"
    assert (first.began, first.ends, second.began) == (0.0, 1.0, 1.0)


def test_a_request_that_keeps_its_blocks_gives_them_back_when_it_is_aborted():
    """Though it has ended: nobody can have them, its id stays taken, and no reset is done."""
    engine = engine_of(blocks=4)
    engine.add(replace(request("a", 8), keeps_blocks=True))
    assert engine.step(0.0).outputs[0].finish_reason == "length"
    assert (engine.has_work, engine.running, engine.kv_cache_usage) == (False, 0, 0.5)
    assert not engine.reset_prefix_cache()
    with pytest.raises(InputError, match="'a' is in the engine already"):
        engine.add(request("a", 1))
    engine.add(request("b", 12))
    assert steps(engine, 1) == [{}]
    assert engine.abort("a") is None
    assert engine.abort("a") is None
    assert steps(engine, 1) == [{"b": 12}]
    assert engine.kv_cache_usage == 0
    assert engine.counters.request_success == {"length": 2}


def test_no_more_requests_run_than_allowed_and_the_queue_is_first_come_first_served():
    """The third waits until one of the first two has ended."""
    engine = engine_of(max_num_seqs=2)
    for name in "abc":
        engine.add(request(name, 4, output=2))
    assert steps(engine, 1) == [{"a": 4, "b": 4}]
    assert (engine.running, engine.waiting) == (2, 1)
    assert steps(engine, 2) == [{"a": 1, "b": 1}, {"c": 4}]


def test_a_request_that_does_not_fit_as_a_whole_holds_up_all_behind_it():
    """Admission asks for room for the whole prompt, though one chunk of it would fit."""
    engine = engine_of(blocks=10)
    engine.add(request("a", 8, output=2))
    engine.add(request("b", 36, output=1))
    engine.add(request("c", 4, output=1))
    assert steps(engine, 3) == [{"a": 8}, {"a": 1}, {"b": 32}]


def test_requests_of_one_step_share_what_the_first_of_them_is_about_to_compute():
    """Blocks are cached when they are scheduled."""
    engine = engine_of()
    for name in ("a1", "a2"):
        engine.add(request(name, 10))
    result = engine.step(0.0)
    assert result.scheduled_tokens == {"a1": 10, "a2": 2}
    assert [output.cached_tokens for output in result.outputs] == [0, 8]


def test_where_blocks_run_out_the_youngest_running_request_is_preempted():
    """It loses its blocks, waits at the front, and finds in the cache what is still there."""
    engine = engine_of(blocks=5)
    engine.add(request("a", 7, output=8))
    engine.add(request("b", 7, output=8))
    engine.add(request("c", 7, output=1))
    assert steps(engine, 2) == [{"a": 7, "b": 7}, {"a": 1, "b": 1}]
    result = engine.step(2.0)
    assert result.scheduled_tokens == {"a": 1}
    assert result.preempted == ("b",)
    assert (engine.running, engine.waiting) == (1, 2)
    assert engine.counters.num_preemptions == 0
    rest = steps(engine, 20)
    assert next(step["b"] for step in rest if "b" in step) == 5
    assert not engine.has_work
    assert engine.counters.num_preemptions == 1
    assert engine.counters.prefix_cache_queries == 21
    assert engine.counters.prefix_cache_hits == 0
    assert engine.counters.request_success == {"length": 3}


def test_long_prompts_are_cut_to_the_threshold_unless_they_are_alone():
    """Nobody is starved where nobody waits."""
    engine = engine_of(long_prefill_token_threshold=10)
    engine.add(request("a", 40))
    assert steps(engine, 1) == [{"a": 32}]
    engine.add(request("b", 30))
    assert steps(engine, 2) == [{"a": 8, "b": 10}, {"b": 20}]


def test_a_stop_token_ends_the_answer_and_is_part_of_it():
    """And so does the end of the context."""
    engine = engine_of()
    engine.add(request("a", 4, output=9, stop=[7]))
    output = engine.step(0.0).outputs[0]
    assert (output.token_ids, output.finish_reason) == ((7,), "stop")
    engine.add(request("b", 255, output=9))
    outputs = [output for _ in range(8) for output in engine.step(0.0).outputs]
    assert [output.finish_reason for output in outputs] == ["length"]


def test_salts_separate_and_equal_salts_share():
    """Isolation between tenants."""
    engine = engine_of()
    found = []
    for name, salt in [("a1", "x"), ("a2", "y"), ("a3", "x"), ("a4", None)]:
        engine.add(request(name, 9, salt=salt))
        found.append(engine.step(0.0).outputs[0].cached_tokens)
    assert found == [0, 0, 8, 0]


def test_an_answer_is_cached_but_for_its_last_token():
    """Four prompt tokens and four of an answer are one block, because the eighth never ran."""
    engine = engine_of()
    engine.add(request("a", 4, output=4))
    steps(engine, 4)
    assert engine.pool.resident == 1
    engine.add(EngineRequest("b", [*range(1000, 1004), 7, 7, 7, 7, 7], 1, lambda _: 7))
    assert engine.step(0.0).outputs[0].cached_tokens == 4


def test_without_prefix_caching_nothing_is_looked_up_counted_or_kept():
    """Queries stay at nought, as in vLLM."""
    sink = Events()
    engine = engine_of(enable_prefix_caching=False, sink=sink)
    for _ in range(2):
        engine.add(request("a", 9))
        assert engine.step(0.0).outputs[0].cached_tokens == 0
    assert (engine.counters.prefix_cache_queries, engine.pool.resident, sink.rows) == (0, 0, [])


def test_an_aborted_request_gives_its_blocks_back_whether_it_waits_or_runs():
    """Its last output carries no token."""
    engine = engine_of(max_num_seqs=1)
    engine.add(request("a", 9, output=5))
    engine.add(request("b", 9))
    engine.step(0.0)
    assert engine.kv_cache_usage == 0.03
    output = engine.abort("a")
    assert (output.token_ids, output.finish_reason) == ((), "abort")
    assert engine.abort("b").cached_tokens == 0
    assert engine.abort("b") is None
    assert (engine.has_work, engine.kv_cache_usage) == (False, 0.0)
    assert engine.counters.request_success == {}
    assert engine.step(1.0).ends == 1.0


def test_a_reset_waits_for_nobody():
    """It is refused while a request holds blocks."""
    sink = Events()
    engine = engine_of(sink=sink)
    engine.add(request("a", 9, output=2))
    engine.step(0.0)
    assert not engine.reset_prefix_cache()
    engine.step(0.0)
    assert engine.reset_prefix_cache()
    assert sink.rows[-1] == ["cleared"]
    engine.add(request("a", 9))
    assert engine.step(0.0).outputs[0].cached_tokens == 0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        pytest.param(request("a", 0), "expected 1 to 255 tokens, got 0", id="no prompt"),
        pytest.param(request("a", 256), "expected 1 to 255 tokens, got 256", id="too long"),
        pytest.param(request("a", 4, output=0), "max_tokens: expected at least 1", id="no answer"),
        pytest.param(
            request("a", 30, output=12),
            "41 tokens do not fit into the cache's 40",
            id="an answer that outgrows the pool",
        ),
        pytest.param(EngineRequest("a", [-1], 1, int), "whole numbers from 0", id="no token"),
        pytest.param(request("taken", 4), "id: 'taken' is in the engine", id="an id twice"),
    ],
)
def test_what_can_never_be_computed_is_refused_when_it_is_added(wrong, message):
    """The engine is as it was before."""
    engine = engine_of(blocks=10)
    engine.add(request("taken", 4))
    with pytest.raises(InputError) as caught:
        engine.add(wrong)
    assert message in str(caught.value)
    assert engine.waiting == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"block_size": 0}, "block_size: expected at least 1, got 0"),
        ({"max_num_seqs": 0}, "max_num_seqs: expected at least 1, got 0"),
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens: expected at least 1, got 0"),
        ({"max_model_len": 1}, "max_model_len: expected at least 2, got 1"),
        ({"long_prefill_token_threshold": -1}, "expected 0 (no limit) or more, got -1"),
        ({"num_gpu_blocks": 1}, "num_gpu_blocks: expected at least 2, got 1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    """With the name that `vllm serve` has for them."""
    with pytest.raises(InputError) as caught:
        Engine(EngineConfig(**({"num_gpu_blocks": 10} | settings)), OneSecond())
    assert message in str(caught.value)


workloads = st.lists(
    st.tuples(
        st.integers(0, 8),  # added before this step
        st.lists(st.integers(0, 1), min_size=1, max_size=20),  # the prompt
        st.integers(1, 12),  # tokens to generate
    ),
    min_size=1,
    max_size=12,
)


@given(workloads, st.integers(8, 12), st.integers(1, 5), st.integers(1, 16), st.integers(0, 6))
def test_every_request_gets_what_it_asked_for_whatever_the_pressure(
    workload, blocks, seqs, budget, threshold
):
    """Law 9: tokens out = tokens asked; every step moves; time never runs backwards."""
    engine = engine_of(
        blocks,
        max_num_seqs=seqs,
        max_num_batched_tokens=budget,
        long_prefill_token_threshold=threshold,
    )
    workload = sorted(workload, key=lambda item: item[0])
    tokens, now, step = dict.fromkeys(map(str, range(len(workload))), 0), 0.0, 0
    computed, waiting = 0, list(enumerate(workload))
    while waiting or engine.has_work:
        while waiting and waiting[0][1][0] <= step:
            number, (_, prompt, output) = waiting.pop(0)
            engine.add(EngineRequest(str(number), prompt, output, lambda _: 1))
        had_work = engine.has_work
        result = engine.step(now)
        assert bool(result.scheduled_tokens) == had_work
        assert sum(result.scheduled_tokens.values()) <= budget
        assert engine.running <= seqs
        assert result.ends >= now
        computed += sum(result.scheduled_tokens.values())
        for output in result.outputs:
            tokens[output.request_id] += len(output.token_ids)
        now, step = result.ends, step + 1
    assert tokens == {str(number): item[2] for number, item in enumerate(workload)}
    assert (engine.pool.free, engine.kv_cache_usage) == (blocks, 0.0)
    counters = engine.counters
    assert counters.generation_tokens == sum(tokens.values())
    assert counters.prompt_tokens == counters.prefix_cache_queries
    if not counters.num_preemptions:
        # Every token but the last of each answer is computed once or found.
        todo = counters.prompt_tokens + counters.generation_tokens - len(workload)
        assert computed == todo - counters.prefix_cache_hits
