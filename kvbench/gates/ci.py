"""Verdicts in the forms that pipelines read: JUnit, Markdown, GitHub's annotations.

In JUnit a gate is a test case: `failed` is a failure; `cannot tell` is skipped, since nothing is
known to be wrong; `invalid` is an error. A run that may not be judged is one more case, an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from kvbench.records.verdict import Decided, GateResult, Verdict

_SIGNS: dict[Decided, str] = {
    "passed": "✅",
    "failed": "❌",
    "cannot tell": "❔",
    "invalid": "🚫",
}
_ELEMENTS: dict[Decided, str] = {"failed": "failure", "cannot tell": "skipped", "invalid": "error"}
_LEVELS: dict[Decided, str] = {"failed": "error", "cannot tell": "warning", "invalid": "warning"}


def junit(verdicts: Iterable[Verdict]) -> bytes:
    """Return the verdicts as JUnit XML: a suite for each run, a case for each gate."""
    root = ET.Element("testsuites", name="kvbench")
    for verdict in verdicts:
        cases = list(_cases(verdict))
        counts = {name: str(sum(d == kind for _, d, _ in cases)) for kind, name in _COUNTED}
        suite = ET.SubElement(root, "testsuite", counts)
        suite.attrib |= {"name": f"{verdict.arm} ({verdict.run})", "tests": str(len(cases))}
        for gate, decided, said in cases:
            case = ET.SubElement(suite, "testcase", classname=f"kvbench.{verdict.arm}", name=gate)
            if decided in _ELEMENTS:
                ET.SubElement(case, _ELEMENTS[decided], message=_plain(said))
            ET.SubElement(case, "system-out").text = _plain(said)
    ET.indent(root)
    written: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return written + b"\n"


_COUNTED: tuple[tuple[Decided, str], ...] = (
    ("failed", "failures"),
    ("invalid", "errors"),
    ("cannot tell", "skipped"),
)


def _cases(verdict: Verdict) -> Iterator[tuple[str, Decided, str]]:
    if verdict.reasons:
        yield "the measurement is valid", "invalid", "; ".join(verdict.reasons)
    for result in verdict.gates:
        yield result.gate, result.decided, result.said


def _plain(text: str) -> str:
    """Return text without what XML cannot hold."""
    return "".join(c for c in text if c >= " " or c in "\n\t")


def markdown(verdicts: Sequence[Verdict]) -> str:
    """Return the verdicts as Markdown, for a summary or a comment."""
    return "\n".join(_section(verdict) for verdict in verdicts)


def _section(verdict: Verdict) -> str:
    lines = [f"### {_SIGNS[verdict.decided]} kvbench: {_cell(verdict.arm)} {verdict.decided}", ""]
    lines += [f"- not valid: {_cell(reason)}" for reason in verdict.reasons]
    lines += [f"- {_cell(note)}" for note in verdict.notes]
    if verdict.gates:
        lines += ["", "| | gate | measured |", "|---|---|---|"]
        lines += [
            f"| {_SIGNS[one.decided]} {one.decided} | {_cell(one.gate)} | {_cell(one.said)} |"
            for one in verdict.gates
        ]
    level = f"{100 * verdict.confidence:.0f} %"
    lines += ["", f"Run `{verdict.run}`; in parentheses intervals of {level}.", ""]
    return "\n".join(lines)


def _cell(text: str) -> str:
    """Return text that is no markup and stays in its cell."""
    for sign in "\\|<>`*_":
        text = text.replace(sign, f"&#{ord(sign)};")
    return text.replace("\n", " ")


def github_commands(verdicts: Iterable[Verdict]) -> list[str]:
    """Return GitHub workflow commands: a line for each gate that did not pass."""
    lines = []
    for verdict in verdicts:
        lines += [
            f"::warning title=kvbench {_value(verdict.arm)} not valid::{_data(reason)}"
            for reason in verdict.reasons
        ]
        lines += [
            f"::{_LEVELS[result.decided]} {_place(result)}title=kvbench {_value(verdict.arm)} "
            f"{result.decided}::{_data(f'{result.gate}: {result.said}')}"
            for result in verdict.gates
            if result.decided in _LEVELS and not verdict.reasons
        ]
    return lines


def _place(result: GateResult) -> str:
    file, _, line = (result.where or "").rpartition(":")
    return f"file={_value(file)},line={line}," if file and line.isdecimal() else ""


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _value(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
