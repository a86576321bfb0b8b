"""From readings and events to metrics, whatever pods say."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from kvbench.errors import InputError
from kvbench.exporter.fleet import MOST_PODS, Fleet
from kvbench.kvcache.events import BlockStored, EventBatch, encode_batch, published_frames
from kvbench.metrics import exporter as metrics
from kvbench.metrics.engines import QUANTITIES, spellings
from kvbench.metrics.exposition import NonsenseError, Reading, read


def shown(fleet: Fleet, now: float = 100.0) -> dict[str, dict[tuple[str, ...], float]]:
    """Return what is exported: by metric, by the values of its labels in their names' order."""
    fleet.show(now, [])
    samples: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(generate_latest(fleet.meters.registry).decode()):
        for sample in family.samples:
            labels = tuple(v for _, v in sorted(sample.labels.items()))
            samples.setdefault(sample.name, {})[labels] = sample.value
    return samples


def publish(fleet: Fleet, stream, seq: int, *events, ts: float = 50.0) -> None:
    """Have a stream bring a batch."""
    payload = encode_batch(EventBatch(ts, events, 0))
    fleet.ledger.published(stream, published_frames("", seq, payload))


SGLANG = b"""\
# TYPE sglang:cached_tokens_total counter
sglang:num_running_reqs{model_name="m",tp_rank="0"} 1.0
sglang:max_total_num_tokens{model_name="m"} 1000.0
sglang:kv_used_tokens{model_name="m"} 300.0
sglang:kv_evictable_tokens{model_name="m"} 500.0
sglang:page_size{model_name="m"} 1.0
sglang:context_len{model_name="m"} 100.0
sglang:prompt_tokens_total{model_name="m"} 60.0
sglang:evicted_tokens_total{model_name="m"} 7.0
"""


def test_sglang_tells_its_pool_itself_and_is_shown_in_the_same_words():
    """No events are needed; what was counted begins with the first look."""
    fleet = Fleet(lambda: 0.0)
    fleet.add("a")
    fleet.looked("a", 1.0, 0.01, read(SGLANG))
    fleet.looked("a", 2.0, 0.01, read(SGLANG.replace(b" 60.0", b" 90.0").replace(b" 7.0", b" 9.0")))
    now = shown(fleet)

    assert now[metrics.INFO.name] == {("sglang", "m", "a"): 1.0}
    assert now[metrics.REFERENCED_TOKENS.name] == {("a",): 300.0}
    assert now[metrics.EVICTABLE_TOKENS.name] == {("a",): 500.0}
    assert now[metrics.EMPTY_TOKENS.name] == {("a",): 200.0}
    assert now[metrics.HEADROOM_SEQUENCES.name] == {("window", "a"): 7.0}
    assert now[metrics.QUERIED_TOKENS.name] == {("a",): 30.0}
    assert now[metrics.EVICTED_TOKENS.name] == {("a",): 2.0}
    assert now[metrics.EVENTS_TRUST.name][("off", "a")] == 1.0
    assert metrics.RESIDENT_TOKENS.name not in now


def test_a_pod_of_several_ranks_is_one_pod():
    """Its caches are several, and hold the same twice if they do."""
    fleet = Fleet(lambda: 0.0)
    fleet.add("a")
    streams = fleet.ledger.follow("a", ranks=2)
    for stream in streams:
        publish(fleet, stream, 0, BlockStored((1, 2), None, (1, 2, 3, 4), 2))
    now = shown(fleet)

    causes = {cause: value for (cause, _), value in now[metrics.STORED_TOKENS.name].items()}
    assert causes == {"cold": 4.0, "elsewhere": 4.0, "evicted": 0.0, "reset": 0.0}
    assert now[metrics.DUPLICATE_TOKENS.name] == {(): 4.0}
    assert now[metrics.EVENTS_BATCHES.name] == {("a",): 2.0}


def test_what_cannot_be_read_is_absent_and_what_was_counted_stays():
    """No false zero, and no gap in a counter."""
    fleet = Fleet(lambda: 0.0)
    fleet.add("a")
    fleet.looked("a", 1.0, 0.01, read(SGLANG))
    fleet.looked("a", 2.0, 5.0, "timeout")
    now = shown(fleet)

    assert now[metrics.UP.name] == {("a",): 0.0}
    assert now[metrics.QUERIED_TOKENS.name] == {("a",): 0.0}
    assert now[metrics.SCRAPE_FAILURES.name] == {("a", "timeout"): 1.0}
    assert metrics.CAPACITY_TOKENS.name not in now
    assert metrics.MAX_OVER_MEAN.name not in now


def test_nothing_is_left_of_a_pod_that_is_gone():
    """Neither series nor memory."""
    fleet = Fleet(lambda: 0.0)
    fleet.add("a")
    (stream,) = fleet.ledger.follow("a")
    publish(fleet, stream, 0, BlockStored((1,), None, (1, 2), 2))
    fleet.looked("a", 1.0, 0.01, "refused")
    fleet.ledger.drop("a")
    fleet.drop("a")
    fleet.looked("a", 2.0, 0.01, "refused")  # a look that was under way

    assert [k for values in shown(fleet).values() for k in values if "a" in k] == []
    assert (fleet.cache.caches, fleet.cache.unique_tokens) == ({}, 0)


def test_a_pod_that_never_takes_blocks_back_is_forgotten_before_memory_is_full():
    """Twice what it can hold cannot be; what others hold stays."""
    fleet = Fleet(lambda: 0.0)
    streams = {}
    for name in "ab":
        fleet.add(name)
        (streams[name],) = fleet.ledger.follow(name)
        fleet.looked(name, 1.0, 0.01, read(SGLANG))  # 1,000 tokens
    publish(fleet, streams["b"], 0, BlockStored((1,), None, (1, 2), 2))
    names = tuple(range(2, 1003))
    publish(fleet, streams["a"], 0, BlockStored(names, None, tuple(range(2002)), 2))
    fleet.looked("a", 2.0, 0.01, read(SGLANG))
    now = shown(fleet)

    assert now[metrics.EVENTS_TRUST.name][("cold", "a")] == 1.0
    assert now[metrics.RESIDENT_TOKENS.name] == {("b",): 2.0}
    assert fleet.cache.unique_tokens == 2


def test_labels_with_closed_sets_have_these_values_and_no_others():
    """Pods, engines, models and GPUs are the only open ones, and those are few."""
    fleet = Fleet(lambda: 0.0)
    fleet.add("a")
    (stream,) = fleet.ledger.follow("a")
    publish(fleet, stream, 0, BlockStored((1,), None, (1, 2), 2))
    fleet.looked("a", 1.0, 0.01, read(SGLANG))
    fleet.looked("a", 2.0, 0.01, "refused")
    fleet.show(3.0, [])
    used: dict[str, set[str]] = {}
    for family in fleet.meters.registry.collect():
        for sample in family.samples:
            for label, value in sample.labels.items():
                used.setdefault(label, set()).add(value)

    named = {label for metric in metrics.METRICS for label in metric.labels}
    assert named - set(metrics.LABELS) == {"pod", "engine", "model", "gpu"}
    for label, values in metrics.LABELS.items():
        assert used.get(label, set()) <= set(values)


def test_there_is_an_end_to_pods():
    """Labels are bounded."""
    fleet = Fleet(lambda: 0.0)
    for number in range(MOST_PODS):
        fleet.add(f"pod {number}")
    with pytest.raises(InputError, match=f"at most {MOST_PODS} pods"):
        fleet.add("one more")


names = st.sampled_from([wire for q in QUANTITIES for name in q.names for wire in spellings(name)])
suffixes = st.sampled_from(["", "_bucket", "_sum", "_count", "_total", "x"])
labels = st.sampled_from([
    "", '{le="1.0"}', '{le="+Inf"}', '{le="x"}', '{engine="0"}', '{engine="1",model_name="m"}',
    '{block_size="0",num_gpu_blocks="1"}', '{block_size="16",num_gpu_blocks="2"}',
    '{kv_cache_size_tokens="7",kv_cache_max_concurrency="0"}', '{tp_rank="1"}', '{model_name="é"}',
    '{kv_cache_max_concurrency="nan",kv_cache_size_tokens="8"}', "{", '{a="\\""}',
])  # fmt: skip
numbers = st.one_of(
    st.sampled_from(["NaN", "+Inf", "-1", "0", "1e308", "-1e308", "x", ""]),
    st.floats(allow_nan=True).map(str),
)
lines = st.tuples(names, suffixes, labels, numbers).map(lambda t: f"{t[0]}{t[1]}{t[2]} {t[3]}")
expositions = st.lists(lines, max_size=25).map("\n".join).map(str.encode)


@given(st.lists(st.one_of(expositions, st.binary(max_size=60)), max_size=5))
def test_whatever_pods_say_the_exporter_shows_numbers_or_nothing(said):
    """Known names with any labels and values: nothing breaks, and no NaN is shown."""
    fleet = Fleet(lambda: 0.0)
    fleet.add("a")
    for second, exposition in enumerate(said):
        try:
            reading: Reading | str = read(exposition)
        except NonsenseError:
            reading = "nonsense"
        fleet.looked("a", float(second), 0.1, reading)
    for values in shown(fleet, 10.0).values():
        assert not any(math.isnan(value) for value in values.values())
