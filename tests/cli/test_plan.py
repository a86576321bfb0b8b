"""`kvbench plan` shows what will be sent, and sends nothing."""

from __future__ import annotations

import asyncio
import json

import fakes_target
import fakes_workload
import pytest
import typer
from typer.testing import CliRunner

from kvbench.cli.plan import plan
from kvbench.errors import InputError, TargetError


def show(*arguments):
    """Run the verb and return what it printed."""
    app = typer.Typer()
    app.command()(plan)
    result = CliRunner().invoke(
        app, [str(a) for a in arguments], env={"COLUMNS": "140"}, catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    return [
        " ".join(line.replace("│", " ").replace("┃", " ").split())
        for line in result.output.splitlines()
    ]


@pytest.fixture
def workload(tmp_path):
    """A workload file."""
    path = tmp_path / "chat.yaml"
    path.write_text(fakes_workload.CHAT, encoding="utf-8")
    return path


def test_a_workload_is_shown_in_numbers_with_its_ceiling(workload):
    """Sessions, turns, groups, tokens, and the first turns in their order."""
    lines = show(workload, "--show", "3")
    assert "chat, seed 5" in lines
    assert "sessions 12" in lines
    assert any(line.startswith("ceiling ") and "blocks of 16" in line for line in lines)
    assert sum(line.startswith(("0.", "1.", "+")) for line in lines) == 3
    assert next(line for line in lines if line.startswith("0.00 s s00 1 tenant-"))


def test_a_trace_is_shown_likewise(tmp_path):
    """Its ids have a ceiling of their own: 512 + 512 of 2,724 tokens."""
    trace = fakes_workload.write_trace(tmp_path, *fakes_workload.ROWS)
    lines = show("--trace", trace, "--block-size", "512", "--show", "0")
    assert "turns 3" in lines
    assert "prompt tokens 600 · 1,024 · 1,100 (least · median · most), 2,724 in all" in lines
    assert next(line for line in lines if line.startswith("ceiling 37.6 % of prompt tokens"))
    assert "computed at least 1,700 prompt tokens" in lines
    assert "the first turns" not in lines


def server(window=None, root=None):
    """Return what answers as a pod of blocks of 32 tokens does."""
    card = {"id": "mini", "root": root, "max_model_len": window}
    pages = {
        "/v1/models": json.dumps({"data": [card]}).encode(),
        "/metrics": b'vllm:cache_config_info{block_size="32"} 1.0\n',
    }

    def answer(asked):
        path = asked.head.split()[1].decode()
        return fakes_target.plain(200 if path in pages else 404, pages.get(path, b"{}"))

    return fakes_target.ScriptedTarget(answer)


def planned_for(target, *arguments):
    """Return what the verb prints with this target, and the paths that were asked for."""

    async def case():
        async with target:
            lines = await asyncio.to_thread(show, *arguments, "--target", target.url)
            return lines, [asked.head.split()[:2] for asked in target.asked]

    return asyncio.run(case())


def test_a_target_is_planned_for_with_its_blocks_and_window_and_sent_nothing(workload):
    """As `run` would do it; what is given on the command line still goes first."""
    lines, asked = planned_for(server(window=100), workload, "--show", "0")
    assert any(line.endswith(", mini, window 100 tokens") for line in lines)
    assert any(line.startswith("ceiling ") and "blocks of 32" in line for line in lines)
    assert any("turns are longer than the model's window: up to" in line for line in lines)
    assert {method for method, _ in asked} == {b"GET"}

    lines, _ = planned_for(server(), workload, "--block-size", "64", "--model", "mini")
    assert any(line.startswith("ceiling ") and "blocks of 64" in line for line in lines)
    assert not any("window" in line for line in lines)


def test_a_target_that_is_not_there_or_has_no_such_model_is_told(workload):
    """Exit codes 3 and 2; a model without a target is a mistake."""
    with pytest.raises(TargetError, match="does not answer"):
        show(workload, "--target", "http://127.0.0.1:9")
    with pytest.raises(InputError, match="has no model 'big'; it has mini"):
        planned_for(server(), workload, "--model", "big")
    with pytest.raises(InputError, match="--model: expected --target beside it"):
        show(workload, "--model", "mini")


def test_a_mistake_is_an_input_error(workload):
    """The command line turns it into one sentence and exit code 2."""
    workload.write_text("name: 5", encoding="utf-8")
    with pytest.raises(InputError, match=r"chat.yaml:1: "):
        show(workload)
    workload.write_text("x", encoding="utf-8")
    with pytest.raises(InputError) as caught:
        show(workload)
    assert "gates" not in (caught.value.hint or ""), "it is no workload, whatever gates it has"
