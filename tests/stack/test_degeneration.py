"""Degenerate answers in a whole run: injected ones are found, by kind and share of the window."""

from __future__ import annotations

import subprocess
from collections import Counter

import pytest

from kvbench.records.reader import read_rows
from kvbench.records.run import RunFolder
from kvbench.stack.process import Child, kvbench_command

pytestmark = [pytest.mark.stack, pytest.mark.timeout(120)]

WORKLOAD = """
name: small
api: chat
seed: 3
prefixes:
  - {name: system, count: 4, tokens: 300}
sessions: {count: 8, turns: 2, user_tokens: 40, answer_tokens: 40, think: 0.05}
arrival: {poisson: {rate: 10}}
"""


@pytest.mark.parametrize(
    ("fault", "kinds"),
    [
        pytest.param([], {None: 16}, id="a pod that is well"),
        pytest.param(["--fault=degenerate:nth=3"], {None: 15, "loop": 1}, id="one loop"),
        pytest.param(["--fault=degenerate:kind=echo"], {"echo": 16}, id="nothing but echoes"),
    ],
)
def test_loops_are_in_the_rows_and_nothing_else_is(fault, kinds, tmp_path):
    """From a pod that says its first word over and over, for some requests or all."""
    (tmp_path / "small.yaml").write_text(WORKLOAD)
    pod = kvbench_command(
        "pod", "--max-model-len=2048", "--time-scale=0.2", *fault, "--exit-with-parent"
    )
    with Child("pod", pod, tmp_path / "pod.log") as child:
        command = kvbench_command(
            "run", "small.yaml", "--target", child.wait_ready(60), "--no-preflight"
        )
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=100
        )
    (folder,) = (tmp_path / "runs").iterdir()
    rows, _ = read_rows(RunFolder.open(folder))

    assert Counter(row.degeneration for row in rows) == kinds, done.stdout + done.stderr
    assert {row.context for row in rows} <= {"0-25", "25-50"}
    assert ("degen-" in done.stdout) == (kinds != {None: 16})
