"""`kvbench import` writes what `kvbench plan` and `kvbench run` read."""

from __future__ import annotations

import fakes_workload
import pytest
import typer
from typer.testing import CliRunner

from kvbench.cli.import_ import import_
from kvbench.errors import InputError
from kvbench.workload.load import load_plan
from kvbench.workload.trace import read_trace

SHARED = """\
data: {type: shared_prefix, shared_prefix: {num_groups: 2, num_prompts_per_group: 2,
  system_prompt_len: 9, question_len: 9, output_len: 9}}
load: {type: constant, stages: [{rate: 2, duration: 5}]}
"""


def ran(*arguments):
    """Run the verb and return what it printed."""
    app = typer.Typer()
    app.command()(import_)
    result = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_a_trace_becomes_a_plan_file_that_is_the_same_plan(tmp_path):
    """What was guessed is said, and kept in the file."""
    trace, out = fakes_workload.write_trace(tmp_path, *fakes_workload.ROWS), tmp_path / "plan.jsonl"
    said = ran(trace, "-o", out)
    assert "guessed: mooncake" in said
    assert "note: read as Mooncake: blocks of 512 tokens" in said
    assert "3 sessions, 3 turns, 2,724 prompt tokens" in said
    assert load_plan(None, out) == read_trace(trace)


def test_what_a_format_leaves_open_can_be_said(tmp_path):
    """Every option reaches the reader."""
    trace, out = fakes_workload.write_trace(tmp_path, *fakes_workload.ROWS), tmp_path / "plan.jsonl"
    said = ran(trace, "-o", out, "--format", "mooncake", "--time-unit", "s", "--limit", "2")
    assert "guessed" not in said
    assert [turn.at for turn in load_plan(None, out).turns] == [0, 500]


@pytest.mark.parametrize(
    ("content", "sessions"),
    [
        ("--num-users 4 --num-rounds 2 --qps 1 --answer-len 9", 4),
        (
            SHARED,
            10,
        ),
    ],
    ids=["production-stack", "inference-perf"],
)
def test_settings_become_a_workload_file(tmp_path, content, sessions):
    """Which plans as it should."""
    source, out = tmp_path / "settings", tmp_path / "w.yaml"
    source.write_text(content)
    assert f"wrote {out}: kvbench plan {out}" in ran(source, "-o", out)
    assert load_plan(out, None).sessions == sessions


def test_a_mistake_is_an_input_error(tmp_path):
    """The command line turns it into one sentence and exit code 2."""
    with pytest.raises(InputError, match="cannot be read"):
        ran(tmp_path / "none", "-o", tmp_path / "x", "--format", "production-stack")
    with pytest.raises(InputError, match="cannot be read"):
        ran(tmp_path / "none", "-o", tmp_path / "x")
