import math

import pytest
from fakes_records import failed_row, manifest, row, story, written_run
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.records.manifest import CacheCounters, Manifest, PodCounters
from kvbench.records.reader import read_frame
from kvbench.records.stats import Balance, PodTraffic
from kvbench.records.summary import summarise
from kvbench.records.table import join_tables, table_to_frame, to_frame, to_table


def test_a_summary_of_a_known_run_holds_its_numbers():
    """Three turns, one of them failed, on two pods: every figure by hand."""
    rows = [
        row(0, pod="a"),
        row(1, pod="a", cached_tokens=0, first_token_s=1.601, last_token_s=1.901, session="s1"),
        failed_row(2, pod="b", first_read_chunks=3),
    ]
    summary = summarise(to_frame(rows), manifest(rows, id="r1", pods={}))

    assert (summary.run, summary.arm) == ("r1", "prefix")
    assert (summary.turns, summary.planned, summary.sessions) == (3, 3, 2)
    assert summary.failed == {"timeout": 1}
    assert summary.failures == 1
    assert summary.hits.rate == 512 / 2000
    assert summary.ttft.p50 == pytest.approx(0.6)
    assert summary.ttft.p95 == math.inf
    assert summary.ttft_intended.p50 == pytest.approx(0.601)
    assert summary.e2e.p50 == pytest.approx(0.9)
    assert summary.tpot.p50 == pytest.approx(0.1)
    assert summary.chunk_gap.p50 == 0.1
    assert summary.lateness.max == pytest.approx(0.001)
    assert summary.output_tokens == 8
    assert summary.wall_s == pytest.approx(1.9)
    assert summary.tokens_per_s == pytest.approx(8 / 1.9)
    assert summary.pods == (PodTraffic("a", 2, 2000, 1488), PodTraffic("b", 1, 0, 0))
    assert summary.turn_balance == Balance(pytest.approx(2 / 3), pytest.approx(4 / 3))
    assert summary.uncached_balance == Balance(1.0, 2.0)
    assert summary.late_reads == 1


def test_errors_are_counted_by_kind_the_most_frequent_first():
    """So that the table says first what went wrong most."""
    kinds = ["cut", "timeout", "http", "timeout", "cut", "timeout"]
    summary = summarise(to_frame([failed_row(i, k) for i, k in enumerate(kinds)]), Manifest())

    assert list(summary.failed.items()) == [("timeout", 3), ("cut", 2), ("http", 1)]


def test_a_run_in_which_everything_failed_has_infinite_latencies_and_no_rate():
    """Nothing is 0 that was not measured."""
    summary = summarise(to_frame([failed_row(i) for i in range(4)]), Manifest())

    assert summary.ttft.p50 == math.inf
    assert summary.hits.rate is None
    assert summary.tokens_per_s is None
    assert summary.turn_balance.busiest is None


def test_a_run_without_rows_has_a_summary():
    """Unknown throughout, and no error."""
    summary = summarise(to_frame([]), Manifest(id="r1"))

    assert (summary.turns, summary.arm) == (0, "r1")
    assert math.isnan(summary.ttft.p50)
    assert summary.failed == {}


@pytest.mark.parametrize(
    ("arm", "policies", "expected"),
    [
        pytest.param("chosen", ["prefix"], "chosen", id="the manifest's word"),
        pytest.param(None, ["prefix", "prefix"], "prefix", id="the one policy"),
        pytest.param(None, ["prefix", "random"], "r1", id="several policies"),
        pytest.param(None, [None], "r1", id="no policy"),
    ],
)
def test_an_arm_is_named_by_the_manifest_else_by_its_policy_else_by_the_run(
    arm, policies, expected
):
    """Something always tells it apart."""
    rows = [row(i, policy=policy) for i, policy in enumerate(policies)]

    assert summarise(to_frame(rows), Manifest(id="r1", arm=arm)).arm == expected


def test_the_servers_own_hit_rate_is_of_what_its_counters_moved():
    """What the pods had counted before the run is not the run's."""
    rows = story(sessions=5)
    summary = summarise(to_frame(rows), manifest(rows))

    assert summary.server_hit_rate == summary.hits.rate


@pytest.mark.parametrize(
    "counters",
    [
        pytest.param(PodCounters(), id="never read"),
        pytest.param(
            PodCounters(
                before=CacheCounters(queries=9, hits=1), after=CacheCounters(queries=5, hits=0)
            ),
            id="pod restarted",
        ),
    ],
)
def test_a_pod_whose_counters_cannot_be_compared_makes_the_servers_rate_unknown(counters):
    """A part of the pods is not the whole."""
    good = PodCounters(
        before=CacheCounters(queries=0, hits=0), after=CacheCounters(queries=10, hits=5)
    )
    summary = summarise(to_frame([row()]), Manifest(pods={"a": good, "b": counters}))

    assert summary.server_hit_rate is None


@given(st.data())
@settings(max_examples=15)
def test_merging_shards_equals_computing_on_the_whole(data):
    """However the rows lie on workers and in whatever order, the summary is the same value."""
    rows = [*story(sessions=6, turns=3), failed_row(900), row(901, cached_tokens=None)]
    shards = data.draw(st.integers(1, 5))
    places = data.draw(st.lists(st.integers(0, shards - 1), min_size=len(rows), max_size=len(rows)))
    shuffled = data.draw(st.permutations(list(zip(rows, places, strict=True))))
    tables = [to_table([r for r, place in shuffled if place == shard]) for shard in range(shards)]

    merged = summarise(table_to_frame(join_tables(tables)), manifest(rows))

    assert merged == summarise(to_frame(rows), manifest(rows))


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_the_number_of_workers_does_not_show_in_the_summary(tmp_path, workers):
    """Through the files, as a run does it."""
    rows = story(sessions=7)
    folder = written_run(tmp_path, rows, workers=workers, id="same")
    frame, _ = read_frame(folder)

    assert summarise(frame, manifest(rows)) == summarise(to_frame(rows), manifest(rows))


def test_degenerate_answers_are_counted_among_those_that_were_judged():
    """Answers under 32 tokens are not, but for those that are none; refused turns may be."""
    long = {"completion_tokens": 40, "max_tokens": 40}
    rows = [
        row(0, **long),
        row(1, **long, degeneration="loop"),
        row(2),
        row(3, degeneration="empty"),
        failed_row(4, degeneration="overflow"),
        row(5, **long, degeneration="loop"),
    ]
    summary = summarise(to_frame(rows), manifest(rows))

    assert summary.judged == 5
    assert summary.degenerate == {"loop": 2, "empty": 1, "overflow": 1}
