"""`/metrics` of the master: read back by Prometheus' own parser."""

from fakes_live import live, row, tally
from prometheus_client.parser import text_string_to_metric_families

from kvbench.load.exposition import exposition
from kvbench.load.live import Live
from kvbench.metrics import load


def samples(run):
    """Return the samples of a run's exposition by name and labels, and their families."""
    families = list(text_string_to_metric_families(exposition(run).decode()))
    found = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }
    return found, families


def test_the_run_is_named_and_its_tokens_are_counted_by_pod():
    """Hit rate and ceiling can be computed from what is told."""
    found, _ = samples(live(tally(row(), row(pod="b", cached_tokens=16, turn=2))))

    info = ("kvbench_load_run_info", ("run", "run-1"), ("target", "http://pod"))
    assert found[(*info, ("workload", "chat"))] == 1
    assert found["kvbench_load_cached_tokens_total", ("pod", "a")] == 48
    assert found["kvbench_load_cached_tokens_total", ("pod", "b")] == 16
    assert found["kvbench_load_ceiling_tokens_total", ("pod", "b")] == 64
    assert found["kvbench_load_turns_total", ("outcome", "ok")] == 2
    assert found["kvbench_load_running",] == 1


def test_histograms_are_cumulative_and_split_first_turns_from_later_ones():
    """A first turn can hit only what others share with it."""
    name = "kvbench_load_time_to_first_token_seconds"
    found, _ = samples(live(tally(row(), row(turn=2), row(turn=3, first_token_s=9.0))))

    assert found[f"{name}_bucket", ("le", "0.1"), ("turn", "first")] == 0  # 2 % buckets: above it
    assert found[f"{name}_bucket", ("le", "0.2"), ("turn", "first")] == 1
    assert found[f"{name}_bucket", ("le", "0.2"), ("turn", "later")] == 1
    assert found[f"{name}_bucket", ("le", "+Inf"), ("turn", "later")] == 2
    assert found[f"{name}_count", ("turn", "later")] == 2
    assert abs(found[f"{name}_sum", ("turn", "later")] - (0.1 + 7.999)) < 1e-9


def test_every_entry_of_the_catalogue_is_told_and_nothing_else():
    """Also before the first run."""
    _, families = samples(Live())
    told = {
        family.name + {"counter": "_total", "info": "_info"}.get(family.type, "")
        for family in families
    }
    named = {metric.name for metric in load.METRICS}
    assert {name.removesuffix("_info") for name in told} == {
        name.removesuffix("_info") for name in named
    }


def test_degenerate_answers_are_told_by_kind_and_context():
    """Also those of which there are none yet, so that an increase is seen from the first on."""
    loop = {"degeneration": "loop", "completion_tokens": 40, "context_ratio": 0.1}
    found, _ = samples(live(tally(row(**loop), row(completion_tokens=40, context_ratio=0.1))))
    name = "kvbench_load_degenerate_answers_total"

    assert found["kvbench_load_judged_answers_total", ("context", "0-25")] == 2
    assert found[name, ("context", "0-25"), ("kind", "loop")] == 1
    assert found[name, ("context", "over"), ("kind", "overflow")] == 0
