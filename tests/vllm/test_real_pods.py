"""The whole line against real engines: what the rows hold is what the pods counted."""

import subprocess
import sys
from pathlib import Path

import pytest

from kvbench.records.reader import read_frame
from kvbench.records.run import RunFolder
from kvbench.stack.target import cache_counters

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

WORKLOAD = """
name: real
api: chat
seed: 11
prefixes:
  - {name: system, count: 3, tokens: 400}
sessions:
  count: 12
  turns: 4
  user_tokens: {uniform: [20, 60]}
  answer_tokens: 12
  think: 0.2
arrival:
  poisson: {rate: 4}
"""


def kvbench(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the command line as a user does."""
    command = [sys.executable, "-m", "kvbench.cli.main", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def total(counters: dict[str, dict[str, float]], word: str) -> float:
    """Return the sum of one counter over the pods."""
    return sum(pod[word] for pod in counters.values())


def test_the_rows_hold_exactly_the_hits_that_the_real_pods_counted(real_pods, router, tmp_path):
    """Sum of `cached_tokens` and `prompt_tokens` over the rows = increase of hits and queries."""
    (tmp_path / "real.yaml").write_text(WORKLOAD)
    pods = {url: url for url in real_pods}
    before = cache_counters(pods)

    ran = kvbench(
        "run",
        "real.yaml",
        "--target",
        router,
        "--max-lateness",
        "9s",
        "--no-preflight",
        cwd=tmp_path,
    )

    assert ran.returncode == 0, ran.stdout + ran.stderr
    after = cache_counters(pods)
    (path,) = (tmp_path / "runs").iterdir()
    frame, damage = read_frame(RunFolder.open(path))
    assert not damage.sentences()
    assert len(frame) == 48
    assert frame["cached_tokens"].sum() == total(after, "hits") - total(before, "hits") > 0
    assert frame["prompt_tokens"].sum() == total(after, "queries") - total(before, "queries")
    assert (frame["prompt_tokens"] == frame["planned_prompt_tokens"]).all()
    assert (frame["cached_tokens"] <= frame["ceiling_tokens"]).all()
    assert set(frame["pod"]) == {url.removeprefix("http://") for url in real_pods}
