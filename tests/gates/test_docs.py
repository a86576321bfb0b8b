"""The documents beside gates: examples are read, and what they call exists."""

import re
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

from kvbench.cli.main import app
from kvbench.gates.file import read_gates
from kvbench.workload.parse import load_workload

DOCS = Path(__file__).parents[2] / "docs"
CI = DOCS / "ci"


def _commands(text: str) -> list[list[str]]:
    """Return the kvbench command lines in a text, without what the shell does with them."""
    joined = text.replace("\\\n", " ")
    lines = re.findall(r"^[\s-]*(?:run: )?kvbench (.+)$", joined, re.MULTILINE)
    return [re.split(r"\s(?:\|\||>|&)|\s{3,}", line)[0].split() for line in lines]


@pytest.mark.parametrize("path", [CI / "github-actions.yml", CI / "gitlab-ci.yml"])
def test_pipelines_are_yaml_and_name_files_that_are_there(path):
    """They can be copied as they are."""
    text = path.read_text()
    assert yaml.safe_load(text)
    for name in re.findall(r"docs/ci/[\w.-]+", text):
        assert (DOCS.parent / name).is_file(), name


@pytest.mark.parametrize(
    "path", [CI / "github-actions.yml", CI / "gitlab-ci.yml", DOCS / "gates.md"]
)
def test_every_command_in_them_has_its_verb_and_its_flags(path):
    """What is documented exists."""
    verbs = get_command(app).commands
    commands = _commands(path.read_text())
    assert len(commands) >= 3
    for command in commands:
        verb = verbs[command[0]]
        known = {flag for option in verb.params for flag in option.opts}
        for word in command[1:]:
            if word.startswith("-") and word.strip("-"):
                assert word.split("=")[0] in known, f"{path.name}: {' '.join(command)}"


def test_the_pipelines_workload_and_gates_are_what_they_should_be():
    """A minute of traffic, and gates of which one can end it."""
    assert load_workload(CI / "workload.yaml").sessions.count == 120
    gates = read_gates(CI / "gates.yaml")
    assert len(gates) >= 4
    assert any(gate.abort_on_fail for gate in gates)
