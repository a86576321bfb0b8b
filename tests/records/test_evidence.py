import msgspec
from fakes_records import failed_row, row, story, written_run

from kvbench.records.evidence import counted_hits, read_evidence
from kvbench.records.manifest import CacheCounters, PodCounters
from kvbench.records.server import Snapshot
from kvbench.records.validity import Limits

ZERO = 1795953601.0  # the manifest's 2026-11-29T12:00:01Z


def _watched(folder, *looks):
    lines = [
        msgspec.json.encode(Snapshot(at=ZERO + at, server=pod, values={"hits": hits}))
        for at, pod, hits in looks
    ]
    folder.server_path.write_bytes(b"\n".join(lines))
    return read_evidence(folder)


def test_servers_and_rows_that_agree_leave_no_reason(tmp_path):
    """The counters of the fake manifest are made from the rows."""
    evidence = read_evidence(written_run(tmp_path, story()))
    assert evidence.reasons == ()
    assert counted_hits(evidence.manifest, {}) == evidence.summary.hits.cached_tokens


def test_a_pod_that_was_restarted_makes_the_run_invalid(tmp_path):
    """Its cache was lost in the middle of the measurement."""
    folder = written_run(tmp_path, [row(i) for i in range(4)])
    evidence = _watched(folder, (-1, "pod-0", 900), (2, "pod-0", 0), (5, "pod-0", 4 * 512))
    assert evidence.reasons == ("pod-0 was restarted during the run, 2 s after its start",)


def test_counters_that_disagree_say_by_how_much_and_why(tmp_path):
    """More than half a percent of the prompt tokens is too much; the limit can be moved."""
    folder = written_run(tmp_path, [row(i) for i in range(4)])
    evidence = _watched(folder, (-1, "pod-0", 0), (5, "pod-0", 4 * 512 + 100))
    (reason,) = evidence.reasons
    assert reason == (
        "the pods counted 100 cached tokens more than the rows hold (2.5 % of all prompt tokens): "
        "others sent traffic there, or rows are lost"
    )
    assert read_evidence(folder, Limits(counters_apart=0.03)).reasons == ()
    evidence = _watched(folder, (-1, "pod-0", 0), (5, "pod-0", 4 * 512 - 100))
    assert evidence.reasons[0].endswith("a pod was replaced, or its counters were read late")


def test_without_snapshots_the_manifests_counters_speak(tmp_path):
    """Runs that were not watched are judged all the same."""
    counters = PodCounters(
        before=CacheCounters(queries=0, hits=0), after=CacheCounters(queries=9000, hits=4000)
    )
    rows = [row(i) for i in range(4)]
    evidence = read_evidence(written_run(tmp_path, rows, pods={"pod-0": counters}))
    assert evidence.reasons[0].startswith("the pods counted 1,952 cached tokens more")


def test_where_turns_failed_the_counters_cannot_agree_and_are_not_asked(tmp_path):
    """A pod counts a prompt whose answer never came."""
    rows = [row(0), row(1), failed_row(2)]
    folder = written_run(tmp_path, rows)
    assert _watched(folder, (-1, "pod-0", 0), (5, "pod-0", 9999)).reasons == ()


def test_the_lateness_accepted_when_a_run_was_made_stays_accepted(tmp_path):
    """Whoever judges it later judges by the same limit."""
    rows = [row(i, sent_s=i + 0.25) for i in range(5)]
    strict = read_evidence(written_run(tmp_path / "a", rows))
    lenient = read_evidence(written_run(tmp_path / "b", rows, max_lateness_s=0.5))
    assert strict.reasons[0].startswith("the load generator was late")
    assert lenient.reasons == ()


def test_a_run_that_was_killed_is_read_as_far_as_it_goes_and_says_so(tmp_path):
    """Half a row, half a snapshot, and a manifest that never heard of an end."""
    folder = written_run(tmp_path, [row(i) for i in range(4)], state="running", planned_turns=9)
    with folder.rows_path(0).open("ab") as file:
        file.write(b'{"index": 4, "sess')
    folder.server_path.write_bytes(b'{"at": 1795953601.0, "ser')
    evidence = read_evidence(folder)
    assert len(evidence.frame) == 4
    assert evidence.server == {}
    assert evidence.reasons == (
        "the run has not ended, or was killed before it could say so",
        "4 rows for 9 planned turns",
        "1 broken line was skipped, the first at rows-0.jsonl:5: Input data was truncated",
    )
