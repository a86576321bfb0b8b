"""How often `kvbench compare` is wrong, and how often it finds 5 %: the table in docs/gates.md.

python scripts/show_comparisons.py

Generated: p95 of log-normal TTFTs of 300 sessions, which differ from each other, in runs whose
machine is faster or slower by 1 % each time. Simulated: the demo's workload with 160 sessions on
three pods in virtual time under `prefix_cost`; an arm is compared with itself under other seeds,
and with itself on pods that are 5 % slower under the same seeds.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import yaml

from kvbench.gates.baseline import Fingerprint
from kvbench.gates.compare import ArmRun, judge_rounds, ratios
from kvbench.gates.grammar import parse_gate
from kvbench.gates.measure import Measurement
from kvbench.records.evidence import read_evidence
from kvbench.stack.virtual import VirtualPods, run_virtual

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvbench.gates.baseline import Fingerprint
from kvbench.gates.compare import Round

GATE = parse_gate("ttft p95 no worse than baseline")
ROUNDS = 4
TRIALS = 200


def _generated(chance: np.random.Generator, slower: float) -> ArmRun:
    machine = np.exp(0.01 * chance.standard_normal())
    apart = np.repeat(0.1 * chance.standard_normal(300), 5)
    times = slower * machine * np.exp(0.3 * chance.standard_normal(1500) + apart)
    value = float(np.quantile(times, 0.95, method="inverted_cdf"))
    found = Measurement(value, None, 1500, 300)
    return ArmRun("", "a", (), Fingerprint(), {str(GATE.measure): found})


def _shares(name: str, trials: Iterable[list[Round]]) -> None:
    failed = differs = count = 0
    for rounds in trials:
        count += 1
        failed += judge_rounds(_alike(rounds), [GATE]).decided == "failed"
        (ratio,) = (one for one in ratios(rounds, [GATE]) if one.what == GATE.measure)
        differs += ratio.said in {"better", "worse"}
    print(f"{name:44} {count:4} comparisons: {differs:3} differ, {failed:3} fail", flush=True)


def _alike(rounds: list[Round]) -> list[Round]:
    """Return the rounds with one fingerprint: seeds differ here on purpose."""
    one = rounds[0][0].fingerprint
    return [(replace(a, fingerprint=one), replace(b, fingerprint=one)) for a, b in rounds]


def main() -> None:
    """Print the shares."""
    chance = np.random.default_rng(1)
    for name, slower in (("generated, A against A", 1.0), ("generated, 5 % slower", 1.05)):
        _shares(
            name,
            (
                [(_generated(chance, 1.0), _generated(chance, slower)) for _ in range(ROUNDS)]
                for _ in range(TRIALS)
            ),
        )
    with tempfile.TemporaryDirectory() as root:
        spec = yaml.safe_load(Path("workloads/demo.yaml").read_text(encoding="utf-8"))
        spec["sessions"]["count"] = 160
        file = Path(root) / "demo.yaml"
        file.write_text(yaml.safe_dump(spec), encoding="utf-8")

        def run(seed: int, slower: float = 1.0) -> ArmRun:
            pods = VirtualPods(num_gpu_blocks=2048, slower=slower)
            return ArmRun.of(
                read_evidence(
                    run_virtual(file, "prefix_cost", pods=pods, runs=Path(root), seed=seed)
                ),
                [GATE],
            )

        same = [run(seed) for seed in range(48)]
        slower = [run(seed, 1.05) for seed in range(48)]
        picks = (chance.permutation(48)[: 2 * ROUNDS] for _ in range(TRIALS))
        _shares(
            "simulated, A against A",
            ([(same[i], same[j]) for i, j in pick.reshape(-1, 2)] for pick in picks),
        )
        for count in (4, 8):
            starts = range(0, 48, count)
            _shares(
                f"simulated, 5 % slower pods, {count} rounds",
                ([(same[i], slower[i]) for i in range(at, at + count)] for at in starts),
            )


if __name__ == "__main__":
    main()
