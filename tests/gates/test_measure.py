import math

import msgspec
import numpy as np
import pytest
from fakes_records import failed_row, replace, row, story, written_run

from kvbench.gates.grammar import parse_gate
from kvbench.gates.measure import measure
from kvbench.records.evidence import read_evidence
from kvbench.records.server import Snapshot
from kvbench.records.stats import gaps
from kvbench.records.table import to_frame


def _run(tmp_path, rows, snapshots=(), **changes):

    folder = written_run(tmp_path, rows, **changes)
    folder.server_path.write_bytes(b"\n".join(map(msgspec.json.encode, snapshots)))
    return read_evidence(folder)


def _value(evidence, text):
    """Return the value of what `text` measures."""
    return measure(evidence, parse_gate(f"{text} no worse than baseline").measure).value


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """A run of 40 sessions, two of whose turns failed."""
    rows = [
        failed_row(r.index, session=r.session, turn=r.turn, intended_s=r.intended_s)
        if r.index in {17, 90}
        else r
        for r in story()
    ]
    return rows, _run(tmp_path_factory.mktemp("told"), rows)


def test_every_measure_equals_what_the_rows_say(told):
    """Computed here once more, one row at a time."""
    rows, evidence = told
    ttft = sorted(r.ttft_s if r.ok else math.inf for r in rows)
    tpot = sorted(r.tpot_s if r.ok else math.inf for r in rows)
    late = sorted(r.ttft_s if r.ok else math.inf for r in rows if r.turn > 1)
    known = [r for r in rows if r.ok]
    prompt, cached = (sum(getattr(r, n) for r in known) for n in ("prompt_tokens", "cached_tokens"))
    ceiling = sum(r.ceiling_tokens for r in known) / sum(r.planned_prompt_tokens for r in known)
    good = sum(r.ok and r.ttft_s < 0.2 and r.tpot_s <= 0.021 for r in rows)
    turns = [sum(r.pod == f"pod-{n}" for r in rows) for n in range(4)]
    wall = max(r.last_token_s for r in known) - min(r.sent_s for r in rows)

    assert _value(evidence, "ttft p95") == ttft[228 - 1]
    assert _value(evidence, "ttft p99.5") == math.inf
    assert _value(evidence, "tpot p50") == pytest.approx(tpot[120 - 1])
    assert _value(evidence, "ttft{turn>1} p50") == late[100 - 1]
    assert _value(evidence, "hit_rate") == cached / prompt
    assert _value(evidence, "hit_rate of ceiling") == cached / prompt / ceiling
    assert _value(evidence, "errors") == 2 / 240
    assert _value(evidence, "goodput(ttft < 200ms, tpot <= 21ms)") == good / 240
    assert _value(evidence, "balance max/mean") == max(turns) / (sum(turns) / 4)
    tokens = sum(r.completion_tokens for r in known)
    assert _value(evidence, "throughput") == pytest.approx(tokens / wall)


def test_gaps_are_judged_all_together(told):
    """Also those of failed turns, as one infinite gap each; the interval holds the value."""
    rows, evidence = told
    every = np.sort(gaps(to_frame(rows)))
    found = measure(evidence, parse_gate("itl p99 < 1s").measure)
    assert found.value == every[math.ceil(0.99 * len(every)) - 1]
    assert found.interval.low < found.value < found.interval.high
    assert found.turns == 240


def test_a_scope_takes_the_turns_in_it(told):
    """By number of the turn, tokens of the prompt, and names with stars."""
    rows, evidence = told
    for text, holds in (
        ("turn=3", lambda r: r.turn == 3),
        ("turn!=3", lambda r: r.turn != 3),
        ("context>=3k", lambda r: (r.prompt_tokens or r.planned_prompt_tokens) >= 3000),
        ("context<3k", lambda r: (r.prompt_tokens or r.planned_prompt_tokens) < 3000),
        ("pod=pod-[1]", lambda _: False),
        ("pod=pod-1", lambda r: r.pod == "pod-1"),
        ("pod!=pod-1", lambda r: r.pod not in {"pod-1", None}),
        ("group=g*", lambda _: True),
        ("session=s1*, turn<3", lambda r: r.session.startswith("s1") and r.turn < 3),
    ):
        found = measure(evidence, parse_gate(f"errors{{{text}}} < 1%").measure)
        assert found.turns == sum(map(holds, rows)), text


def test_nothing_in_scope_is_no_number_and_says_so(told):
    """It must not look like a passed gate."""
    found = measure(told[1], parse_gate("ttft{turn>9} p95 < 1s").measure)
    assert math.isnan(found.value)
    assert found.missing == "no turn has turn>9"


def test_unknown_cached_tokens_are_no_hit_rate_of_zero(tmp_path):
    """Unknown is unknown."""
    evidence = _run(tmp_path, [row(i, cached_tokens=None) for i in range(30)])
    found = measure(evidence, parse_gate("hit_rate > 0.5").measure)
    assert math.isnan(found.value)
    assert found.missing == "the pods do not report cached tokens"


def test_where_nothing_can_be_cached_there_is_no_share_of_it(tmp_path):
    """And the sentence does not blame the pods."""
    rows = [replace(r, ceiling_tokens=0, cached_tokens=0) for r in story()]
    evidence = _run(tmp_path, rows)
    found = measure(evidence, parse_gate("hit_rate > 0.9 of ceiling").measure)
    assert found.missing == "the ceiling is 0 %: no prompt repeats another"


def test_an_answer_of_one_token_meets_every_limit_of_its_tpot(tmp_path):
    """There is none to miss."""
    rows = [row(i, completion_tokens=1, last_token_s=i + 0.201) for i in range(3)]
    evidence = _run(tmp_path, rows)
    assert _value(evidence, "goodput(tpot < 1ms)") == 1.0
    assert measure(evidence, parse_gate("tpot p50 < 1s").measure).missing is not None


def test_what_servers_say_is_taken_while_turns_are_sent(tmp_path):
    """Usage before the first turn is somebody else's; counters from the first look to the last."""
    zero = 1795953601.0  # 2026-11-29T12:00:01Z
    seen = [(-2, 0.9, 0), (0, 0.2, 10), (5, 0.6, 20), (10, 0.4, 34)]
    snapshots = [
        Snapshot(at=zero + at, server=pod, values={"kv_usage": use / n, "evictions": count * n})
        for at, use, count in seen
        for n, pod in ((1, "pod-0"), (2, "pod-1"))
    ]
    snapshots.append(Snapshot(at=zero, server="router", kind="router", values={"retries": 1}))
    evidence = _run(tmp_path, [row(i, pod="pod-0") for i in range(9)], snapshots)
    assert _value(evidence, "kv_usage max") == 0.6
    assert _value(evidence, "kv_usage{pod=*-1} max") == 0.3
    assert _value(evidence, "kv_usage{pod=pod-0} mean") == pytest.approx(0.4)
    assert _value(evidence, "evictions") == pytest.approx((34 + 68) / 12)
    missing = measure(evidence, parse_gate("waiting max < 1").measure).missing
    assert missing == "pod-0 does not expose waiting"
    missing = measure(evidence, parse_gate("kv_usage{pod=x} max < 1").measure).missing
    assert missing == "no pod matches"


def test_turns_held_back_by_a_failed_gate_are_no_errors(tmp_path):
    """They were never sent, on purpose."""
    rows = [*[row(i) for i in range(8)], failed_row(8, "not_sent", sent_s=None)]
    assert _value(_run(tmp_path / "a", rows, aborted="errors < 1%"), "errors") == 0.0
    assert _value(_run(tmp_path / "b", rows), "errors") == 1 / 9


def test_the_same_run_gives_the_same_interval(told):
    """Chance is seeded; another seed gives another one, hardly different."""
    what = parse_gate("hit_rate > 0.5").measure
    first, again, other = (measure(told[1], what, seed=seed).interval for seed in (1, 1, 2))
    assert first == again != other
    assert first.low == pytest.approx(other.low, abs=0.01)


def test_more_sessions_make_intervals_narrower(tmp_path):
    """Four times the sessions, about half the width."""
    widths = []
    for sessions in (40, 160):
        evidence = _run(tmp_path / str(sessions), story(sessions=sessions))
        interval = measure(evidence, parse_gate("ttft p50 < 1s").measure).interval
        widths.append(interval.high - interval.low)
    assert 1.3 < widths[0] / widths[1] < 3.1


def test_turns_of_a_session_that_agree_count_as_little_more_than_one(tmp_path):
    """Ten copies of each turn say nothing new, and the interval does not shrink."""
    once = story(sessions=60, turns=1)
    copies = [replace(r, index=10 * r.index + n) for r in once for n in range(10)]
    what = parse_gate("ttft p50 < 1s").measure
    one = measure(_run(tmp_path / "once", once), what).interval
    ten = measure(_run(tmp_path / "ten", copies), what).interval
    assert ten.high - ten.low > 0.5 * (one.high - one.low)  # independent ones: 0.32
