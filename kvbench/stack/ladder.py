"""Climbs a ladder: every arm at every rate under every seed, lowest rate first.

At each rate the arms take turns (A B, B A, …), so that a drifting machine harms them alike. A rate
is the workload's own `arrival` with another rate, written as a workload file beside the runs, so
that every run can be repeated by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import yaml

from kvbench.errors import InputError
from kvbench.gates.ladder import Ladder, Step, check_objective
from kvbench.gates.measure import measure as measure_run
from kvbench.records.evidence import read_evidence
from kvbench.workload.parse import load_workload
from kvbench.workload.yaml_file import read_yaml

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from kvbench.gates.gate import Gate
    from kvbench.gates.measure import Measurement
    from kvbench.stack.compare import Measure, Trial

RATED = ("constant", "poisson", "gamma")
"""Arrivals that have one rate."""


def at_rate(workload: Path, rate: float, folder: Path) -> Path:
    """Write the workload with another rate of sessions into `folder`, and return the file.

    Raises:
        InputError: Its arrival has no rate, or the file cannot be written.
    """
    load_workload(workload)  # for its errors
    file = read_yaml(workload)
    content = file.content
    assert isinstance(content, dict)
    arrival = content["arrival"]
    kind = next(iter(arrival), None) if isinstance(arrival, dict) else None
    if kind not in RATED:
        raise InputError(
            f"arrival: expected one of {', '.join(RATED)} for a ladder, got {kind}",
            where=file.where(("arrival",)),
            hint="a ladder sets the rate at which sessions begin",
        )
    changed = {**content, "arrival": {kind: {**arrival[kind], "rate": float(rate)}}}
    path = folder / f"{workload.stem}-rate-{rate:g}.yaml"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(changed, sort_keys=False), encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", where=str(path)) from error
    return path


def climb(
    trial: Trial,
    rates: Sequence[float],
    objective: Gate,
    measure: Measure,
    told: Callable[[str, Step], None],
) -> Ladder:
    """Measure all steps; `told` hears of each as it is done.

    Args:
        trial: Arms, workload, and how many seeds a step has (`rounds`).
        rates: Sessions per second.
        objective: What is to be met.
        measure: Makes one run.
        told: Hears of each arm's step.

    Raises:
        KvbenchError: A run cannot be made.
    """
    limit = check_objective(objective)
    arms: dict[str, list[Step]] = {arm: [] for arm in trial.arms}
    for rate in sorted(set(rates)):
        file = at_rate(trial.workload, rate, trial.runs)
        found: dict[str, list[Measurement]] = {arm: [] for arm in trial.arms}
        reasons: dict[str, str] = {}
        for number in range(trial.rounds):
            order = trial.arms if number % 2 == 0 else tuple(reversed(trial.arms))
            for arm in order:
                folder = measure(arm, trial.seed + number, file)
                evidence = read_evidence(folder, trial.limits)
                found[arm].append(measure_run(evidence, objective.measure))
                if evidence.reasons:
                    reasons.setdefault(arm, evidence.reasons[0])
        for arm, values in found.items():
            step = Step.of(rate, values, reasons.get(arm))
            arms[arm].append(step)
            told(arm, step)
    return Ladder(objective, limit, {arm: tuple(steps) for arm, steps in arms.items()})
