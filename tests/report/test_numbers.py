import msgspec
import pytest
from fakes_records import failed_row, row, story, written_run
from pages import Page

from kvbench.gates.grammar import parse_gate
from kvbench.gates.judge import judge
from kvbench.records.evidence import read_evidence
from kvbench.records.server import Snapshot
from kvbench.records.validity import Limits
from kvbench.records.verdict import write_verdict
from kvbench.report.numbers import cards, judgement
from kvbench.report.page import build_report
from kvbench.report.view import name_arms, view_run


def _arms(root, **runs):
    folders = [written_run(root, rows, arm=arm) for arm, rows in runs.items()]
    return name_arms([view_run(folder, Limits()) for folder in folders])


def _judged(root, rows, *gates, **changes):
    folder = written_run(root, rows, **changes)
    write_verdict(folder, judge(read_evidence(folder), [parse_gate(text) for text in gates]))
    return folder


def test_the_four_numbers_are_those_of_the_rows_with_their_intervals(tmp_path):
    """What gates would measure, in the same words."""
    folder = written_run(tmp_path, story())
    found = {card.title: card.readings[0] for card in cards(_arms(tmp_path / "r", a=story()))}
    gates = ["hit_rate >= 0.1", "ttft p95 < 1s", "tpot p95 < 1s"]
    results = judge(read_evidence(folder), [parse_gate(text) for text in gates]).gates
    for card, result in zip(
        ("Hit rate", "TTFT p95", "Time per output token, p95"), results, strict=True
    ):
        said = result.said.replace(")", "").split(", limit")[0]
        value, interval = said.split(" (")
        reading = found[card]
        if card == "Hit rate":
            assert reading.beside[0] == "of 85.3 % possible"
            assert float(reading.value[:-2]) == pytest.approx(float(value[:-2]), abs=0.06)
        else:
            assert (reading.value, reading.beside[-1]) == (value, interval)
    assert found["Busiest pod"].beside == ("of the turns", "even is 25.0 %")


def test_intervals_of_arms_stand_on_one_scale(tmp_path):
    """The lowest end of all is at its left, the highest at its right."""
    arms = _arms(tmp_path, prefix=story("prefix"), random=story("random"))
    for card in cards(arms)[:3]:
        ends = [(r.left, r.left + r.width) for r in card.readings]
        assert min(low for low, _ in ends) == 0
        assert max(high for _, high in ends) == pytest.approx(100)
        assert all(r.left <= r.at <= r.left + r.width + 0.1 for r in card.readings)


def test_too_few_turns_say_so_and_failures_stand_beside_the_time(tmp_path):
    """A p95 of thirty turns has no upper end."""
    rows = [row(i, session=f"s{i}") for i in range(29)] + [failed_row(29, session="x")]
    ttft = {c.title: c for c in cards(_arms(tmp_path, a=rows))}["TTFT p95"].readings[0]
    assert ttft.beside[0] == "1 turns failed"
    assert ttft.beside[1].endswith(": too few turns for more")


def test_a_number_that_nobody_knows_has_no_card(tmp_path):
    """And one that one arm knows says that the other does not."""
    blind = [row(i, cached_tokens=None, pod=None) for i in range(30)]
    assert [c.title for c in cards(_arms(tmp_path / "a", a=blind))] == [
        "TTFT p95", "Time per output token, p95",
    ]  # fmt: skip
    both = cards(_arms(tmp_path / "b", a=blind, b=story()))
    assert (both[0].title, both[0].readings[0].value) == ("Hit rate", "unknown")


@pytest.mark.usefixtures("chartless")
@pytest.mark.parametrize(
    ("gates", "kind", "title"),
    [
        (["errors < 1%", "ttft p95 < 10s"], "passed", "Passed"),
        (["errors < 1%", "ttft p95 < 10ms"], "failed", "Failed"),
        (["errors < 1%", "ttft p99 < 1s"], "unsure", "Cannot tell"),
        (["errors < 1%", "ttft{turn>9} p95 < 1s"], "invalid", "Not judged"),
    ],
)
def test_the_page_says_first_what_the_gates_said(tmp_path, gates, kind, title):
    """What did not pass gate by gate, what did as a count; all of them in a table below."""
    folder = _judged(tmp_path, story(), *gates)
    first = judgement({"a": view_run(folder, Limits())}, "checked")
    assert (first.kind, first.title) == (kind, title)
    assert [line.gate for line in first.lines if line.gate] == gates[1:][: kind != "passed"]
    assert first.lines[-1].said in {"1 gate of 2", "2 gates of 2"}
    page = Page(build_report([folder.path], tmp_path / "r.html").read_text())
    table = next(t for t in page.tables if t[0] == ["verdict", "gate", "measured"])
    assert [cells[1] for cells in table[1:]] == gates


def test_what_may_not_be_believed_comes_before_any_gate(tmp_path):
    """And of several arms the worst verdict is the page's."""
    lost = _judged(tmp_path / "a", story(), "errors < 1%", planned_turns=999)
    good = _judged(tmp_path / "b", story(), "errors < 1%")
    bad = _judged(tmp_path / "c", story(), "ttft p95 < 1ms")
    views = [view_run(folder, Limits()) for folder in (lost, good, bad)]
    first = judgement(name_arms(views), "checked")
    assert (first.title, first.lines[0].said) == ("Not valid", "240 rows for 999 planned turns")
    assert judgement(name_arms(views[1:]), "checked").title == "Failed"
    assert judgement({"a": view_run(written_run(tmp_path, story()), Limits())}, "c").lead == "c"


def test_pods_looks_are_brought_to_the_same_moments(tmp_path):
    """The fullest pod, the emptiest, and evictions of both together per second."""
    folder = written_run(tmp_path, story())
    zero = 1795953601.0
    snapshots = [
        Snapshot(
            at=zero + at + 0.1 * pod, server=f"pod-{pod}",
            values={"kv_usage": 0.1 + 0.2 * pod, "evictions": 10.0 * at},
        )
        for at in range(5)
        for pod in range(2)
    ]  # fmt: skip
    folder.server_path.write_bytes(b"\n".join(map(msgspec.json.encode, snapshots)))
    memory = view_run(folder, Limits()).memory
    assert memory.at.tolist() == [0, 1, 2, 3, 4]
    assert memory.fullest.tolist() == pytest.approx([0.3] * 5)
    assert memory.emptiest.tolist() == pytest.approx([0.1] * 5)
    assert memory.evictions[1:].tolist() == pytest.approx([20.0] * 3)
    page = Page(build_report([folder.path], tmp_path / "r.html").read_text())
    assert "The fullest pod had 30.0 % in use at most." in page.text
    assert "The first after 500 ms; at most 20 blocks per second." in page.text
