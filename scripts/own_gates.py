"""Holds kvbench to gates of its own, with its own commands: .github/gates.

python scripts/own_gates.py

Hits and balance of the default policy are played in virtual time and are exact. What the router
adds is measured: one simulated pod, alone and behind the router, in turns. Where the machine is too
noisy to tell, that is said and is no failure; a gate that fails is.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from kvbench.errors import InvalidMeasurementError
from kvbench.policies.names import DEFAULT
from kvbench.stack.local import LocalStack
from kvbench.stack.process import kvbench_command
from kvbench.stack.topology import PodSpec, Topology

ROOT = Path(__file__).parents[1]
GATES = ROOT / ".github" / "gates"
WORKLOAD = str(ROOT / "docs" / "ci" / "workload.yaml")


def kvbench(*arguments: str) -> int:
    """Run a command; return its exit code."""
    print("$ kvbench", *arguments, flush=True)
    return subprocess.run(kvbench_command(*arguments), check=False).returncode  # noqa: S603


def hits(folder: Path) -> int:
    """Judge hits and balance of the default policy."""
    played = kvbench(
        "compare", "round_robin", DEFAULT, "--workload", WORKLOAD, "--virtual", "--rounds", "2",
        "--runs", str(folder),
    )  # fmt: skip
    runs = sorted(map(str, folder.glob(f"*{DEFAULT.replace('_', '-')}*")))
    return played or kvbench("gate", *runs, "--gates", str(GATES / "hits.yaml"))


def latency(folder: Path) -> int:
    """Judge what the router adds to a pod."""
    with LocalStack(Topology(pods=(PodSpec(time_scale=0.1),)), folder) as stack:
        return kvbench(
            "compare", stack.pod_urls[0], stack.url, "--rounds", "4", "--runs", str(folder),
            "--workload", str(GATES / "steady.yaml"),
            "--gates", str(GATES / "latency.yaml"),
        )  # fmt: skip


def main() -> None:
    """Judge both; fail where one does."""
    with tempfile.TemporaryDirectory() as folder:
        exact = hits(Path(folder) / "hits")
        measured = latency(Path(folder) / "latency")
    sys.exit(exact or (measured if measured != InvalidMeasurementError.exit_code else 0))


if __name__ == "__main__":
    main()
