"""The engine against recordings that are made on the spot, with a new seed every day."""

import os
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest
from recordings import compare_steps, load

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

RECORDER = Path(__file__).parents[2] / "scripts" / "record_engine.py"


@pytest.mark.parametrize(
    "settings",
    [
        "--requests 40 --num-gpu-blocks 66 --max-num-seqs 12 --spread 30 --output 120 --aborts 6",
        "--requests 40 --max-num-batched-tokens 130 --long-prefill-token-threshold 40 --salts 2",
    ],
)
def test_a_fresh_recording_of_the_real_engine_is_equal_step_for_step(settings, tmp_path):
    """What is equal must not hang on the rows that we happen to have."""
    home, out = Path(os.environ["REAL_VLLM"]).parent, tmp_path / "fresh.jsonl.gz"
    seed = os.environ.get("RECORDING_SEED") or str(datetime.now(UTC).toordinal())
    command = [home / "venv/bin/python", RECORDER, home / "model", out, "--seed", seed]
    subprocess.run([*command, *settings.split()], check=True, capture_output=True)
    compare_steps(load(out))
