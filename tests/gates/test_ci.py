from xml.etree import ElementTree as ET

import pytest

from kvbench.gates.ci import github_commands, junit, markdown
from kvbench.gates.table import verdict_table
from kvbench.records.verdict import GateResult, Verdict

EVIL = 'a<b> | "c" & `d` \x00 [e](f), 5%: g'


def _verdict(*decided, reasons=(), arm="prefix"):
    gates = [
        GateResult(gate=f"ttft p9{n} < 1s", where=f"gates.yaml:{n}", decided=one, said=f"{n} ms")
        for n, one in enumerate(decided, 1)
    ]
    return Verdict(
        run="r1", arm=arm, decided="failed", reasons=list(reasons), gates=gates, confidence=0.95
    )


def test_junit_tells_failed_from_cannot_tell_from_invalid():
    """A failure, a skipped case, an error; and the counts agree."""
    tree = ET.fromstring(junit([_verdict("passed", "failed", "cannot tell", "invalid")]))
    suite = tree[0]
    assert suite.attrib == {
        "name": "prefix (r1)", "tests": "4", "failures": "1", "errors": "1", "skipped": "1",
    }  # fmt: skip
    kinds = [[child.tag for child in case] for case in suite]
    assert kinds == [
        ["system-out"],
        ["failure", "system-out"],
        ["skipped", "system-out"],
        ["error", "system-out"],
    ]
    assert suite[1][0].get("message") == "2 ms"


def test_a_run_that_may_not_be_judged_is_an_error_of_its_own():
    """Also where it has no gates."""
    suite = ET.fromstring(junit([_verdict(reasons=["late", "lost"])]))[0]
    assert (suite.get("errors"), suite[0].get("name")) == ("1", "the measurement is valid")
    assert suite[0][0].get("message") == "late; lost"


@pytest.mark.parametrize("write", [junit, markdown])
def test_names_are_no_markup(write):
    """Whatever a workload or a server calls itself."""
    verdict = _verdict("failed", reasons=[], arm=EVIL)
    text = write([verdict])
    text = text.decode() if isinstance(text, bytes) else text
    assert "<b>" not in text.replace("\n", "")
    assert "`d`" not in text or write is not markdown


def test_markdown_has_a_row_for_each_gate_and_says_why_it_is_invalid():
    """Signs and words, so that colour alone says nothing."""
    text = markdown([_verdict("passed", "cannot tell", reasons=["the generator was late"])])
    assert "| ✅ passed | ttft p91 &#60; 1s | 1 ms |" in text
    assert "| ❔ cannot tell | ttft p92 &#60; 1s | 2 ms |" in text
    assert "- not valid: the generator was late" in text


def test_github_is_told_file_and_line_of_what_did_not_pass():
    """A failed gate is an error, what cannot be told a warning, what passed is silent."""
    assert github_commands([_verdict("passed", "failed", "cannot tell")]) == [
        "::error file=gates.yaml,line=2,title=kvbench prefix failed::ttft p92 < 1s: 2 ms",
        "::warning file=gates.yaml,line=3,title=kvbench prefix cannot tell::ttft p93 < 1s: 3 ms",
    ]


def test_an_invalid_run_warns_of_its_reasons_and_of_no_gate():
    """Percent signs and line ends are escaped as GitHub asks."""
    commands = github_commands([_verdict("failed", reasons=["5 % late\nindeed"])])
    assert commands == ["::warning title=kvbench prefix not valid::5 %25 late%0Aindeed"]


def test_the_table_has_a_line_for_each_gate():
    """What it comes to, as written, and why."""
    table = verdict_table(_verdict("passed", "failed"))
    cells = [[str(cell) for cell in column.cells] for column in table.columns]
    assert cells == [["passed", "failed"], ["ttft p91 < 1s", "ttft p92 < 1s"], ["1 ms", "2 ms"]]
