from __future__ import annotations

from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.metrics import engines
from kvbench.metrics.exposition import (
    MOST_SAMPLES,
    Lengths,
    NonsenseError,
    began,
    buckets,
    cache_tokens,
    read,
    under_way,
    wakefulness,
)

CONFIG = (
    'vllm:cache_config_info{block_size="16",engine="%d",kv_cache_size_tokens="1600",'
    'num_gpu_blocks="100",num_gpu_blocks_override="None",kv_cache_memory_bytes="51200"} 1.0\n'
)
OLD = """\
vllm:gpu_cache_usage_perc{model_name="m"} 0.5
vllm:gpu_prefix_cache_queries_total{model_name="m"} 100.0
vllm:gpu_prefix_cache_hits_total{model_name="m"} 40.0
"""
NEW = """\
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 100.0
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 40.0
"""
SGLANG = """\
# TYPE sglang:cached_tokens_total counter
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="m",tp_rank="0"} 3.0
sglang:num_running_reqs{model_name="m",tp_rank="1"} 3.0
sglang:token_usage{model_name="m",tp_rank="0"} 0.25
sglang:max_total_num_tokens{model_name="m",tp_rank="0"} 4000.0
sglang:kv_used_tokens{model_name="m",tp_rank="0"} 1000.0
sglang:kv_evictable_tokens{model_name="m",tp_rank="0"} 500.0
sglang:page_size{model_name="m",tp_rank="0"} 64.0
sglang:context_len{model_name="m",tp_rank="0"} 2048.0
sglang:prompt_tokens_total{is_streaming="True",model_name="m"} 60.0
sglang:prompt_tokens_total{is_streaming="False",model_name="m"} 40.0
"""


def of(text: str):
    """Return the reading of an exposition."""
    return read(text.encode())


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(NEW, id="today's names"),
        pytest.param(OLD, id="those before 0.11"),
        pytest.param(NEW + OLD, id="both, as releases in between serve them"),
        pytest.param(NEW.replace("vllm:", "vllm_"), id="an underscore for the colon"),
    ],
)
def test_a_pod_may_be_old_or_new_and_colons_may_be_gone(text):
    """The same numbers, and none of them twice."""
    reading = of(text + CONFIG % 0)

    assert reading.engine == "vllm"
    assert (reading.get(engines.QUERIES), reading.get(engines.HITS)) == (100.0, 40.0)
    assert reading.referenced_tokens == 0.5 * 99 * 16


def test_sglang_says_the_same_things_in_its_own_words():
    """Sums over its labels, one tensor-parallel rank, and the pool's composition as it is."""
    reading = of(SGLANG)

    assert (reading.engine, reading.model, reading.block_tokens) == ("sglang", "m", 64)
    assert (reading.get(engines.RUNNING), reading.get(engines.QUERIES)) == (3.0, 100.0)
    assert (reading.capacity_tokens, reading.referenced_tokens) == (4000.0, 1000.0)
    assert reading.get(engines.EVICTABLE_TOKENS) == 500.0
    assert reading.get(engines.WINDOW) == 2048.0


def test_declared_and_never_counted_is_0_and_undeclared_is_unknown():
    """SGLang shows a counter with labels from its first increment on."""
    assert of(SGLANG).get(engines.HITS) == 0.0
    assert of(NEW).get(engines.PREEMPTIONS) is None


def test_engines_behind_one_address_are_summed_and_their_usage_is_averaged():
    """Two data-parallel engines, one full, one empty."""
    text = NEW + NEW.replace('engine="0"', 'engine="1"').replace("0.5", "0.0")
    reading = of(text + CONFIG % 0 + CONFIG % 1)

    assert reading.get(engines.QUERIES) == 200.0
    assert reading.capacity_tokens == 2 * 99 * 16
    assert reading.referenced_tokens == 0.25 * 2 * 99 * 16
    assert reading.capacity_bytes == 2 * 51200


def test_bytes_that_do_not_belong_to_the_blocks_are_unknown():
    """With an override of the number of blocks the engine still says what it would have taken."""
    text = NEW + CONFIG % 0

    assert of(text).capacity_bytes == 51200.0
    assert of(text.replace('override="None"', 'override="100"')).capacity_bytes is None


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="nothing"),
        pytest.param("<html><body>vllm:</body></html>", id="a page"),
        pytest.param("process_start_time_seconds 5.0\n", id="some other process"),
        pytest.param('vllm:num_requests_running{engine="0"} many\n', id="no number"),
        pytest.param(
            "".join(f'vllm:num_requests_running{{e="{n}"}} 1\n' for n in range(MOST_SAMPLES + 1)),
            id="labels without end",
        ),
    ],
)
def test_nonsense_is_refused(text):
    """Whatever answers at the address."""
    with pytest.raises(NonsenseError):
        of(text)


def test_values_that_are_no_numbers_are_as_if_not_there():
    """NaN as well: it would spoil every sum."""
    reading = of(NEW + 'vllm:num_requests_running{engine="0"} NaN\n')

    assert reading.get(engines.RUNNING) is None
    assert reading.get(engines.QUERIES) == 100.0


RECORDED = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 2.0
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="tiny"} 3.0
# HELP vllm:num_requests_waiting_by_reason Number of waiting requests by reason.
# TYPE vllm:num_requests_waiting_by_reason gauge
vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="capacity"} 3.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="deferred"} 0.0
"""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (RECORDED, 5.0),
        (RECORDED.replace("vllm:", "vllm_"), 5.0),
        (RECORDED + RECORDED.replace('"0"', '"1"'), 10.0),
        (SGLANG, 3.0),
        (RECORDED.replace(" 2.0", " 0.0").replace(" 3.0", " 0.0"), 0.0),
        (RECORDED.replace(" 2.0", " NaN"), 3.0),
        (RECORDED.replace(" 2.0", " +Inf").replace(" 3.0", " three"), None),
        (NEW, None),
        ("", None),
        ("<html>num_requests_running 7</html>", None),
    ],
)
def test_the_requests_under_way_are_those_that_run_and_those_that_wait(text, told):
    """Of all engines behind an address; of ranks that repeat each other, the first."""
    assert under_way(text.encode()) == told


CAPACITY = 'sglang:max_total_num_tokens{model_name="m",tp_rank="%d"} 4096.0\n'


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        pytest.param(NEW + CONFIG % 0, 1584, id="all blocks but the null block"),
        pytest.param((CONFIG % 0).replace("vllm:", "vllm_"), 1584, id="as OpenTelemetry spells it"),
        pytest.param((CONFIG % 0).replace('"100"', '"None"'), 1600, id="tokens alone"),
        pytest.param((CONFIG % 0).replace("1600", "None"), 1584, id="blocks and their size"),
        pytest.param((CONFIG % 0).replace("kv_cache_size", "x").replace("16", "no"), None, id="no"),
        pytest.param(CONFIG % 0 + CONFIG % 1, None, id="two engines, each with a cache"),
        pytest.param(CAPACITY % 0 + CAPACITY % 1, 4096, id="SGLang, two ranks that have a half"),
        pytest.param(CAPACITY.replace("4096.0", "NaN") % 0, None, id="no number"),
        pytest.param(CAPACITY.replace("4096.0", "1.2.3") % 0, None, id="nor this"),
        pytest.param(CAPACITY.replace("4096.0", "1e999") % 0, None, id="without end"),
        pytest.param((CONFIG % 0).replace("1600", "9" * 5000), 1584, id="longer than a number is"),
        pytest.param((CONFIG % 0).replace("1600", "9" * 15), None, id="more than any cache holds"),
        pytest.param(NEW, None, id="not told"),
    ],
)
def test_how_much_the_one_cache_behind_an_address_holds(text, tokens):
    """In tokens; not told where a prompt may come to one of several."""
    assert cache_tokens(text.encode()) == tokens


SLEEP = """\
# TYPE vllm:engine_sleep_state gauge
vllm:engine_sleep_state{engine="0",model_name="tiny",sleep_state="awake"} 0.0
vllm:engine_sleep_state{engine="0",model_name="tiny",sleep_state="weights_offloaded"} 1.0
vllm:engine_sleep_state{engine="0",model_name="tiny",sleep_state="discard_all"} 0.0
"""


@pytest.mark.parametrize(
    ("text", "state"),
    [
        (SLEEP, "asleep"),
        (SLEEP.replace("vllm:", "vllm_").replace("offloaded", "gone"), "asleep"),
        (SLEEP.replace(" 1.0", " 0.0"), "paused"),
        (SLEEP.replace(" 0.0", " 2.0").replace(" 1.0", " 0.0").replace(" 2.0", " 1.0"), "awake"),
        (SLEEP.replace(" 0.0", " no"), "awake"),
        (RECORDED, "awake"),
        ("", "awake"),
    ],
)
def test_an_engine_that_sleeps_says_so(text, state):
    """Paused ones keep their cache."""
    assert wakefulness(text.encode()) == state
    awake = 'vllm:engine_sleep_state{engine="1",sleep_state="awake"} 1.0\n'
    assert wakefulness((awake + text).encode()) == state


BOUNDS = (1.0, 10.0, 100.0, 1000.0, float("inf"))


def histogram(values) -> Lengths:
    """Return values as an engine's histogram shows them."""
    counts = [0.0] * len(BOUNDS)
    for value in values:
        for index in range(bisect_left(BOUNDS, value), len(BOUNDS)):
            counts[index] += 1.0
    return Lengths(BOUNDS, tuple(counts), float(sum(values)))


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("process_start_time_seconds 1.79597509902e+09\n", 1_795_975_099.02),
        ("x 1\nprocess_start_time_seconds 5\n", 5.0),
        ("process_start_time_seconds NaN\n", None),
        ("process_start_time_seconds x\n", None),
        ("# TYPE process_start_time_seconds gauge\n", None),
        ("", None),
    ],
)
def test_when_an_engine_began_is_what_its_process_says(text, moment):
    """What is no number is unknown."""
    assert began(text.encode()) == moment


@given(st.lists(st.integers(1, 4000), min_size=1, max_size=30))
def test_what_is_spread_over_buckets_keeps_counts_buckets_and_the_sum(values):
    """Each value stays in its bucket, and all add up to what the engine summed."""
    spread = histogram(values).spread(4000.0)

    assert sum(n for _, n in spread) == len(values)
    assert sum(value * n for value, n in spread) == pytest.approx(sum(values))
    for value, n in spread:
        low = max((b for b in BOUNDS if b < value), default=0.0)
        high = min(b for b in BOUNDS if b >= value)
        assert 0 < n <= sum(low <= v <= high for v in values)


def test_one_request_between_two_looks_is_exact():
    """Its sum is its length."""
    before = histogram([7, 2500])

    assert histogram([7, 2500, 777]).since(before).spread(4000.0) == [(777.0, 1.0)]


def test_a_histogram_that_began_anew_counts_from_0():
    """Its process was restarted, or has other buckets."""
    assert histogram([5]).since(histogram([5, 6, 7])) == histogram([5])


@pytest.mark.parametrize("colon", [":", "_"])
def test_the_bounds_of_buckets_are_read_as_they_are(colon):
    """In either spelling, once each, without the infinite one; of any engine."""
    text = "".join(
        f'vllm{colon}time_to_first_token_seconds_bucket{{engine="{e}",le="{le}",m="n"}} 1\n'
        for e in "01"
        for le in ("0.5", "1.0", "1e+02", "+Inf")
    )

    assert buckets(text.encode(), engines.TTFT) == (0.5, 1.0, 100.0)
    assert buckets(text.encode(), engines.ITL) == ()
    assert buckets(text.replace("vllm", "sglang").encode(), engines.TTFT) == (0.5, 1.0, 100.0)
