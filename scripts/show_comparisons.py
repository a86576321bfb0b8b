"""How often `kvbench compare` is wrong, and how often it finds 5 %: the table in docs/gates.md.

python scripts/show_comparisons.py [COMPARISONS]

Generated: p95 of log-normal TTFTs of 300 sessions, which differ from each other, in runs whose
machine is faster or slower by 1 % each time. Simulated: conversations like the demo's on three pods
in virtual time under `prefix_cost`: an arm against itself under other seeds, 60 sessions a run, and
against pods that are 5 % slower under the same seeds, 400 sessions a run. Every run is a new one.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import yaml

from kvbench.gates.baseline import Fingerprint
from kvbench.gates.compare import ArmRun, judge_rounds, ratios
from kvbench.gates.grammar import parse_gate
from kvbench.gates.measure import Measurement
from kvbench.oracle.load import Reading, load_script
from kvbench.oracle.play import play
from kvbench.records.stats import quantile
from kvbench.stack.virtual import VirtualPods

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvbench.gates.compare import Round

GATE = parse_gate("ttft p95 no worse than baseline")
ROUNDS = 4


def _run(ttft_s: np.ndarray[tuple[int], np.dtype[np.float64]]) -> ArmRun:
    found = Measurement(quantile(ttft_s, 0.95), None, len(ttft_s))
    return ArmRun("", "arm", (), Fingerprint(), {str(GATE.measure): found})


def _generated(chance: np.random.Generator, slower: float) -> ArmRun:
    machine = np.exp(0.01 * chance.standard_normal())
    apart = np.repeat(0.1 * chance.standard_normal(300), 5)
    return _run(slower * machine * np.exp(0.3 * chance.standard_normal(1500) + apart))


def _simulated(file: Path, seed: int, slower: float) -> ArmRun:
    pods = VirtualPods(num_gpu_blocks=4096, slower=slower)
    rows = play(load_script(file, Reading(16, seed)), pods.fleet("prefix_cost", seed))
    return _run(np.array([row.ttft_s for row in rows]))


def _workload(root: Path, sessions: int, rate: float) -> Path:
    spec = yaml.safe_load(Path("workloads/demo.yaml").read_text(encoding="utf-8"))
    spec["sessions"]["count"] = sessions
    spec["arrival"] = {"poisson": {"rate": rate}}
    path = root / f"{sessions}.yaml"
    path.write_text(yaml.safe_dump(spec), encoding="utf-8")
    return path


def _print(name: str, trials: Iterable[list[Round]]) -> None:
    failed = differs = count = 0
    for rounds in trials:
        count += 1
        failed += judge_rounds(rounds, [GATE]).decided == "failed"
        (ratio,) = ratios(rounds, [GATE])
        differs += ratio.said in {"better", "worse"}
    print(f"{name:36} {count:4} comparisons: {differs:3} differ, {failed:3} fail", flush=True)


def main(comparisons: int) -> None:
    """Print the shares."""
    chance = np.random.default_rng(1)
    for name, slower in (("generated, A against A", 1.0), ("generated, 5 % slower", 1.05)):
        trials = (
            [(_generated(chance, 1.0), _generated(chance, slower)) for _ in range(ROUNDS)]
            for _ in range(comparisons)
        )
        _print(name, trials)
    with tempfile.TemporaryDirectory() as root:
        long, short = _workload(Path(root), 400, 2.0), _workload(Path(root), 60, 3.0)
        trials = (
            [(_simulated(long, s, 1.0), _simulated(long, s, 1.05)) for s in range(at, at + ROUNDS)]
            for at in range(0, ROUNDS * max(comparisons // 10, 1), ROUNDS)
        )
        _print("simulated, 5 % slower pods", trials)
        trials = (
            [
                (_simulated(short, 2 * s, 1.0), _simulated(short, 2 * s + 1, 1.0))
                for s in range(at, at + ROUNDS)
            ]
            for at in range(0, ROUNDS * comparisons, ROUNDS)
        )
        _print("simulated, A against A", trials)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
