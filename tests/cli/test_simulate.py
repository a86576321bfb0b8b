"""`kvbench simulate` as it is typed."""

import json

import pytest
import typer
from fakes_oracle import write_recording
from fakes_workload import CHAT, ROWS, write_trace
from typer.testing import CliRunner

from kvbench.cli.simulate import simulate
from kvbench.errors import InputError

app = typer.Typer()
app.command()(simulate)


def run(*words):
    """Return what is printed; errors come through as they are."""
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_a_recording_gives_its_rows_and_a_summary(tmp_path):
    """A log without times is played one after the other, asked or not."""
    log, out = tmp_path / "log.jsonl", tmp_path / "rows.jsonl"
    recording = write_recording(log, "serial_tight")
    words = (log, "--pods", 1, "--blocks", 200, "--block-size", 32, "--rows", out, "--json")
    summary = json.loads(run(*words, "--serial", "--max-model-len", 4096))
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["cached_tokens"] for row in rows] == [
        row["cached"] for row in recording.rows.values()
    ]
    assert {"index", "pod", "prompt_tokens", "cached_tokens", "ttft_s", "e2e_s"} <= rows[0].keys()
    assert summary["cached_tokens"] == sum(row["cached_tokens"] for row in rows)
    assert summary["metrics"]["vllm:prefix_cache_hits"] == summary["cached_tokens"]
    assert summary == json.loads(run(*words))


def test_a_batch_gives_the_counters_of_the_engine(tmp_path):
    """Named as vLLM names them."""
    log = tmp_path / "log.jsonl"
    recording = write_recording(log, "batch_preempt")
    settings = recording.config
    summary = json.loads(
        run(
            log, "--batch", "--json", "--blocks", settings.num_gpu_blocks,
            "--block-size", settings.block_size, "--max-num-seqs", settings.max_num_seqs,
            "--max-num-batched-tokens", settings.max_num_batched_tokens,
        )
    )  # fmt: skip
    assert summary["metrics"]["vllm:num_preemptions"] == summary["preemptions"] == 54


def test_a_workload_gives_a_table_with_ceiling_and_balance(tmp_path):
    """A hit rate never stands alone."""
    path = tmp_path / "chat.yaml"
    path.write_text(CHAT)
    shown = run(path, "--pods", 2, "--policy", "round_robin")
    for word in ("hit rate", "ceiling", "uncached, max/mean", "TTFT p99", "pod-2", "round_robin"):
        assert word in shown


def test_what_cannot_be_done_is_said(tmp_path):
    """Two ways of arriving; a file that cannot be written; a request that is too long."""
    trace = write_trace(tmp_path, *ROWS)
    with pytest.raises(InputError, match="expected --serial or --batch, got both"):
        run(trace, "--serial", "--batch")
    with pytest.raises(InputError, match="--rows: cannot be written"):
        run(trace, "--rows", tmp_path / "none" / "rows.jsonl")
    with pytest.raises(InputError, match=r"trace.jsonl:1: prompt and answer: expected at most 161"):
        run(trace, "--blocks", 11)
    with pytest.raises(InputError, match="--block-size: expected at most 2048"):
        run(trace, "--block-size", 4096, "--max-model-len", 2048)
