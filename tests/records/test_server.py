import math

import msgspec
import numpy as np
import pytest
from fakes_records import row, written_run
from hypothesis import given
from hypothesis import strategies as st

from kvbench.records.server import FAMILIES, Snapshot, read_server, scan, series_of

EXPOSITION = b"""\
# HELP vllm:prefix_cache_queries_total Prompt tokens.
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{engine="0",model_name="a } b"} 12.0
vllm:prefix_cache_queries_total{engine="1",model_name="a"} 3
vllm:prefix_cache_queries_created{engine="0"} 1.7e9
vllm:kv_cache_usage_perc{engine="0"} 0.5
vllm:kv_cache_usage_perc{engine="1"} 0.25 1764451234
vllm_num_requests_waiting 7
process_start_time_seconds 1.7e+09
vllm:num_requests_running{engine="0"} many
kvbench_pod_evictions_total 5.0
"""


def test_the_numbers_that_are_kept_are_found_in_an_exposition():
    """Engines are added up, but for usage; names may have lost their colons."""
    assert scan(EXPOSITION) == {
        "queries": 15.0,
        "kv_usage": 0.5,
        "waiting": 7.0,
        "started": 1.7e9,
        "evictions": 5.0,
    }


@given(st.binary(max_size=200))
def test_no_bytes_break_the_scan(junk):
    """A server says what it likes."""
    assert set(scan(junk + b"\n" + EXPOSITION)) >= {"kv_usage", "evictions"}


def test_words_and_names_of_families_differ():
    """A word means one family."""
    assert len({f.word for f in FAMILIES}) == len({f.name for f in FAMILIES}) == len(FAMILIES)


def _series(values, word="hits", zero=100.0):
    snapshots = [
        Snapshot(at=100.0 + at, server="p", values={} if value is None else {word: value})
        for at, value in enumerate(values)
    ]
    return series_of(snapshots, zero)["p"]


def test_a_counter_goes_on_over_a_restart_and_the_restart_is_seen():
    """What was counted before is kept."""
    series = _series([10, 14, 3, 9, None, 1])
    assert list(series.numbers["hits"][[0, 1, 2, 3, 5]]) == [10, 14, 17, 23, 24]
    assert series.restarts == (2.0, 5.0)
    assert series.gained("hits") == 14
    assert series.silent == 1


def test_a_gauge_may_fall():
    """That is no restart."""
    assert _series([0.9, 0.1], "kv_usage").restarts == ()


def test_a_process_that_began_later_than_it_did_was_restarted():
    """Also where its counters have already overtaken the old ones."""
    assert _series([1000.0, 1000.0, 1055.0], "started").restarts == (2.0,)


def test_moments_are_of_the_run_and_gauges_of_the_time_in_which_turns_were_sent():
    """What was there before the first turn is somebody else's."""
    series = _series([0.9, 0.5, 0.7], "kv_usage", zero=101.0)
    assert list(series.at_s) == [-1.0, 0.0, 1.0]
    assert list(series.known("kv_usage")) == [0.5, 0.7]
    assert len(series.known("waiting")) == 0


def test_a_rate_is_taken_between_the_first_look_and_the_last():
    """Of what is known; of one look there is none."""
    assert _series([None, 10, 20, 40, None]).rate("hits") == 15.0
    assert _series([10]).rate("hits") is None
    assert _series([10, 20]).rate("evictions") is None


@given(st.lists(st.lists(st.integers(0, 100), min_size=1, max_size=5), min_size=1, max_size=4))
def test_what_lives_gained_is_the_sum_of_what_each_gained(lives):
    """However often it begins anew from zero; a life that overtakes the last cannot be seen."""
    values, total, last = [], 0.0, None
    for steps in lives:
        counts = np.cumsum(steps)
        if last is not None and counts[0] >= last:
            continue
        total += counts[-1] - (counts[0] if last is None else 0)
        values += counts.tolist()
        last = counts[-1]
    gained = _series(values).gained("hits")
    assert gained == (total if len(values) > 1 else None)


def test_broken_lines_are_skipped_and_a_missing_file_is_no_server(tmp_path):
    """A run that was killed is read as far as it goes."""
    folder = written_run(tmp_path, [row(0)])
    assert read_server(folder, None) == {}
    line = msgspec.json.encode(Snapshot(at=5.0, server="p", values={"hits": 1.0}))
    folder.server_path.write_bytes(line + b"\n\xff{\n" + line[: len(line) // 2])
    series = read_server(folder, "not a moment")["p"]
    assert list(series.at_s) == [0.0]
    assert math.isnan(series.rate("hits") or math.nan)


def test_the_manifests_moment_is_second_zero(tmp_path):
    """With its time zone."""
    folder = written_run(tmp_path, [row(0)])
    at = 1795953602.5
    folder.server_path.write_bytes(msgspec.json.encode(Snapshot(at=at, server="p")))
    assert read_server(folder, "2026-11-29T12:00:01Z")["p"].at_s[0] == pytest.approx(1.5)
