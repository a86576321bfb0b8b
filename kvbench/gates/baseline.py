"""The baseline: what some runs gave, how much they differ, and of what they were runs.

A small JSON file, made to be committed. For every measure that it knows it holds one value a run,
so it carries its own noise floor: runs of one plan on one machine against each other (A/A). A
relative gate says that a new run is worse only if it is worse than one more run of the same kind
would be: with R runs of mean m and standard deviation s, such a run lies within
m ± t(R-1) · s · √(1 + 1/R) in 95 of 100 cases.

A comparison is only as good as its likeness:

- another plan (workload, seed, trace length, speed), model, block size or number of pods is
  refused: it is another question;
- on another machine, or with another kvbench or Python, whatever depends on time is not judged,
  unless `across` says so; what is counted (hit rate, errors, balance) is, and the verdict says it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from kvbench import __version__
from kvbench.errors import InputError, InvalidMeasurementError
from kvbench.gates.grammar import parse_gate
from kvbench.gates.measure import measure
from kvbench.records.intervals import CONFIDENCE, t_quantile
from kvbench.records.manifest import Machine

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from kvbench.gates.gate import Gate, Measure
    from kvbench.gates.measure import Measurement
    from kvbench.records.evidence import Evidence

BASELINE_SCHEMA = 1

USUAL = (
    "ttft p50", "ttft p95", "ttft p99", "ttft{turn>1} p95", "tpot p50", "tpot p95", "e2e p95",
    "hit_rate", "hit_rate of ceiling", "errors", "throughput", "balance max/mean",
    "uncached_balance max/mean", "kv_usage max", "evictions",
)  # fmt: skip
"""What every baseline and comparison has, where it is known."""

_TIMED = {"goodput", "kv_usage", "waiting"}


class Fingerprint(msgspec.Struct, frozen=True, kw_only=True):
    """Of what a run is a run.

    Attributes:
        workload: SHA-256 of the workload file or trace.
        seed: Root seed of its plan.
        limit: Rows of a trace, or turns, that were taken.
        speed: Factor by which a trace was replayed faster.
        model: Model asked for.
        block_size: Tokens per block.
        pods: How many.
        kvbench: Version that made the load.
        machine: Where the load came from.
    """

    workload: str | None = None
    seed: int | None = None
    limit: int | None = None
    speed: float | None = None
    model: str | None = None
    block_size: int | None = None
    pods: int = 0
    kvbench: str | None = None
    machine: Machine | None = None

    @classmethod
    def of(cls, evidence: Evidence) -> Fingerprint:
        """Return a run's fingerprint."""
        manifest = evidence.manifest
        return cls(
            workload=manifest.workload.sha256,
            seed=manifest.seed,
            limit=manifest.workload.limit,
            speed=manifest.workload.speed,
            model=manifest.model,
            block_size=manifest.block_size,
            pods=len(manifest.pods),
            kvbench=manifest.kvbench_version,
            machine=manifest.machine,
        )


QUESTION = ("workload", "limit", "speed", "model", "block_size", "pods")
"""Fields in which runs must be alike to be compared at all; and with one plan, the seed."""

_SURROUNDINGS = ("machine", "kvbench")


class BaselineFile(msgspec.Struct, frozen=True, kw_only=True):
    """The file.

    Attributes:
        schema: Version of this form.
        kvbench_version: Who wrote it.
        runs: Ids of the runs it was made of.
        seeds: Seed of each.
        fingerprint: Of the first; the others have the same but for the seed.
        values: By measure, one value a run; null where it was infinite or unknown.
    """

    schema: int = BASELINE_SCHEMA
    kvbench_version: str
    runs: list[str]
    seeds: list[int | None]
    fingerprint: Fingerprint
    values: dict[str, list[float | None]]


@dataclass(frozen=True, slots=True)
class Known:
    """What a baseline knows of one measure.

    Attributes:
        mean: Of its runs.
        deviation: Standard deviation between them; NaN of a single run.
        runs: How many.
    """

    mean: float
    deviation: float
    runs: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Known:
        """Return mean and spread of at least one value."""
        array = np.asarray(values)
        deviation = float(array.std(ddof=1)) if len(array) > 1 else math.nan
        return cls(float(array.mean()), deviation, len(array))

    def reach(self, found: Measurement, factor: float, confidence: float) -> float:
        """Return how far a run as good as the baseline's may lie from `factor` times their mean.

        Of a single run the noise between runs is unknown; then both are taken to be as uncertain
        as the sessions of `found` make it.
        """
        if self.runs > 1:
            t = t_quantile(1 - (1 - confidence) / 2, self.runs - 1)
            return t * self.deviation * math.sqrt(1 + factor * factor / self.runs)
        if found.interval is None:
            return 0.0
        half = max(found.value - found.interval.low, found.interval.high - found.value)
        return half * math.sqrt(1 + factor * factor)


@dataclass(frozen=True, slots=True)
class Baseline:
    """A baseline file, ready to be held against.

    Attributes:
        source: Its path.
        file: Its content.
        across: Whether times may be compared across machines and versions.
    """

    source: str
    file: BaselineFile
    across: bool = False

    def known(self, gate: Gate) -> Known:
        """Return what is known of what a gate measures.

        Raises:
            InputError: Nothing is.
        """
        values = self.file.values.get(str(gate.measure), [])
        finite = [value for value in values if value is not None]
        if not finite or len(finite) < len(values):
            what = "is infinite or unknown in one of its runs" if values else "is not in it"
            raise InputError(
                f"{self.source}: {gate.measure} {what}\n    {gate.text}",
                where=gate.where,
                hint="make the baseline again with the same gates: kvbench baseline RUN… "
                "--gates FILE",
            )
        return Known.of(finite)

    def check(self, evidence: Evidence) -> list[str]:
        """Return what to say about the likeness of a run and the baseline.

        Raises:
            InputError: They are of different plans, models or pods.
        """
        ours, theirs = Fingerprint.of(evidence), self.file.fingerprint
        for name in QUESTION:
            mine, other = getattr(ours, name), getattr(theirs, name)
            if mine != other:
                raise InputError(
                    f"{name.replace('_', ' ')}: the baseline has {_short(other)}, the run "
                    f"{evidence.summary.run} has {_short(mine)}",
                    where=self.source,
                    hint="a baseline holds for one question: make another with `kvbench baseline`",
                )
        seeds = set(self.file.seeds)
        if len(seeds) == 1 and ours.seed not in seeds:
            raise InputError(
                f"seed: the baseline's runs have {seeds.pop()}, the run has {ours.seed}",
                where=self.source,
                hint="run with the same seed, or make the baseline of several seeds",
            )
        return [
            f"the baseline was made with {_said(name, other)}, this run with {_said(name, mine)}"
            for name in _SURROUNDINGS
            if (mine := getattr(ours, name)) != (other := getattr(theirs, name))
        ]

    def foreign(self, what: Measure, evidence: Evidence) -> str | None:
        """Return why a measure cannot be compared, or None if it can."""
        timed = what.subject.quantity in {"seconds", "per second"} or what.subject.name in _TIMED
        if not timed or self.across or not (notes := self.check(evidence)):
            return None
        return f"{notes[0]}: times of both cannot be compared (--across-machines does it anyway)"


def make_baseline(runs: Sequence[Evidence], gates: Iterable[Gate] = ()) -> BaselineFile:
    """Return the baseline of some runs of one arm.

    Args:
        runs: At least one, all valid and alike.
        gates: What they measure is kept beside the usual.

    Raises:
        InvalidMeasurementError: One of the runs is not valid.
        InputError: There is no run, or they are not alike.
    """
    if not runs:
        raise InputError("expected at least one run", hint="kvbench baseline runs/a runs/b …")
    for run in runs:
        if run.reasons:
            raise InvalidMeasurementError(
                f"{run.summary.run} is not valid: {run.reasons[0]}",
                hint="leave it out, or measure it again",
            )
    first = Fingerprint.of(runs[0])
    for run in runs[1:]:
        if run.manifest.arm != runs[0].manifest.arm:
            raise InputError(
                f"arm: {runs[0].summary.run} is of {runs[0].manifest.arm}, "
                f"{run.summary.run} of {run.manifest.arm}",
                hint="a baseline is made of one arm; `kvbench compare` sets two against each other",
            )
        for name in (*QUESTION, *_SURROUNDINGS):
            mine, other = getattr(Fingerprint.of(run), name), getattr(first, name)
            if mine != other:
                raise InputError(
                    f"{name.replace('_', ' ')}: {runs[0].summary.run} has {_said(name, other)}, "
                    f"{run.summary.run} has {_said(name, mine)}",
                    hint="a baseline is made of runs that differ in nothing but their seed",
                )
    return BaselineFile(
        kvbench_version=__version__,
        runs=[run.summary.run for run in runs],
        seeds=[run.manifest.seed for run in runs],
        fingerprint=first,
        values=values_of(runs, [*usual_measures(), *(gate.measure for gate in gates)]),
    )


def smallest_change(known: Known, confidence: float = CONFIDENCE) -> float | None:
    """Return which share of the mean a new run must differ by to be told from one more such run."""
    if known.runs < 2 or not known.mean:
        return None
    t = t_quantile(1 - (1 - confidence) / 2, known.runs - 1)
    return abs(t * known.deviation * math.sqrt(1 + 1 / known.runs) / known.mean)


def usual_measures() -> list[Measure]:
    """Return what every baseline and comparison has."""
    return [parse_gate(f"{text} no worse than baseline").measure for text in USUAL]


def values_of(runs: Sequence[Evidence], what: Iterable[Measure]) -> dict[str, list[float | None]]:
    """Return the value of each measure in each run; measures that no run knows are left out."""
    values = {
        str(one): [_finite(measure(run, one).value) for run in runs]
        for one in {str(one): one for one in what}.values()
    }
    return {name: row for name, row in values.items() if any(value is not None for value in row)}


def write_baseline(path: Path, file: BaselineFile) -> None:
    """Write a baseline.

    Raises:
        InputError: It cannot be written.
    """
    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(file), indent=1) + b"\n")
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", where=str(path)) from error


def read_baseline(path: Path, *, across: bool = False) -> Baseline:
    """Read a baseline.

    Raises:
        InputError: It is missing, broken, or of a newer kvbench.
    """
    try:
        file = msgspec.json.decode(path.read_bytes(), type=BaselineFile)
    except OSError as error:
        raise InputError(
            f"cannot be read: {error.strerror}",
            where=str(path),
            hint="make one with `kvbench baseline RUN…`",
        ) from error
    except msgspec.MsgspecError as error:
        raise InputError(
            f"not a baseline: {error}", where=str(path), hint="make it again: kvbench baseline RUN…"
        ) from error
    if file.schema > BASELINE_SCHEMA:
        raise InputError(
            f"schema: expected at most {BASELINE_SCHEMA}, got {file.schema}",
            where=str(path),
            hint="a newer kvbench wrote it: upgrade kvbench to read it",
        )
    return Baseline(str(path), file, across)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _short(value: object) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= 40 else f"{text[:12]}…"


def _said(name: str, value: object) -> str:
    if isinstance(value, Machine):
        return f"{value.cpus} CPUs, {value.platform}, Python {value.python}"
    return f"{name.replace('_', ' ')} {_short(value)}"
