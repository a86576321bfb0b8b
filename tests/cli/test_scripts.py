"""Whole commands as text files: what is typed, what is printed, and the exit code.

A file in `tests/cases/cli` is a sequence of sections, each begun by a line `== NAME`:

    == file chat.yaml       a file that lies in the current folder
    == run kvbench plan …   the command
    == exit 2               the expected exit code
    == stderr               the expected text, to the letter (== stdout: likewise)

The commands run in this process, in an empty folder of their own.
"""

import shlex
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kvbench.cli.main import main

CASES = sorted((Path(__file__).parents[1] / "cases" / "cli").glob("*.txt"))


@dataclass
class Script:
    """A parsed case."""

    command: list[str] = field(default_factory=list)
    exit_code: int = 0
    files: dict[str, str] = field(default_factory=dict)
    expected: dict[str, str] = field(default_factory=dict)


def parse(text: str) -> Script:
    """Return the case that a file describes; what stands before the first section is prose."""
    script = Script()
    for section in text.split("\n== ")[1:]:
        head, _, body = section.partition("\n")
        word, _, rest = head.partition(" ")
        if word == "run":
            script.command = shlex.split(rest)
        elif word == "exit":
            script.exit_code = int(rest)
        elif word == "file":
            script.files[rest] = body
        else:
            script.expected[word] = body.strip("\n")
    return script


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_a_command_prints_what_its_case_says(path, tmp_path, monkeypatch, capsys):
    """Wording is part of the product, so it is pinned."""
    script = parse(path.read_text())
    for name, body in script.files.items():
        (tmp_path / name).write_text(body)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", script.command)
    monkeypatch.setenv("COLUMNS", "100")
    handler = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit) as ended:
            main()
    finally:
        signal.signal(signal.SIGTERM, handler)
    out, err = capsys.readouterr()
    printed = {"stdout": out, "stderr": err}
    assert {
        "exit": ended.value.code or 0,
        **{word: printed[word].strip("\n") for word in script.expected},
    } == {"exit": script.exit_code, **script.expected}


def test_there_are_cases():
    """A folder that went missing must not pass for a folder whose cases all hold."""
    assert len(CASES) >= 10
