"""The command line explains itself."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from kvbench.cli.main import app

VERBS = get_command(app).commands
README = (Path(__file__).parents[2] / "README.md").read_text()


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_the_help_of_every_verb_shows_how_it_is_typed(verb):
    """An example says more than a list of options."""
    assert re.search(rf"\bkvbench {verb} ", VERBS[verb].help + " ")


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_every_option_of_every_verb_is_explained(verb):
    """An option without a word about it is a riddle."""
    unexplained = [p.name for p in VERBS[verb].params if not getattr(p, "help", None)]
    assert [name for name in unexplained if name != "help"] == []


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_every_option_can_be_read_on_a_narrow_terminal(verb, monkeypatch):
    """A name that is cut short cannot be typed."""
    monkeypatch.setenv("COLUMNS", "80")
    told = re.findall(r"[^\s,]+", CliRunner().invoke(app, [verb, "--help"]).output)

    assert {name for p in VERBS[verb].params for name in p.opts if name[:2] == "--"} <= set(told)


def test_the_readme_lists_the_verbs_that_there_are():
    """Neither more nor fewer."""
    assert sorted(re.findall(r"^\| `kvbench ([a-z-]+)` \|", README, re.MULTILINE)) == sorted(VERBS)


def test_the_command_line_is_there_at_once():
    """What a verb needs is imported when it runs: `--help` must not wait for charts."""
    code = "import sys, kvbench.cli.main; print(*sys.modules)"
    loaded = subprocess.check_output([sys.executable, "-c", code], text=True)
    heavy = {"numpy", "pandas", "pydantic", "matplotlib", "tokenizers", "uvloop", "locust"}
    heavy |= {"asyncio", "yaml", "pynvml", "rich.console", "kvbench.stack", "kvbench.alerts"}
    assert heavy & set(loaded.split()) == set()


@pytest.mark.parametrize(
    ("verb", "words"),
    [
        ("run", "Turns that one load worker has open at most."),
        ("router", "Requests of all clients that are passed on to pods at once;"),
    ],
)
def test_a_flag_that_verbs_share_says_what_each_takes_it_for(verb, words):
    """--max-in-flight guards the load generator's machine in one, and the pods in the other."""
    (flag,) = [one for one in VERBS[verb].params if one.name == "max_in_flight"]
    assert flag.help.startswith(words)
