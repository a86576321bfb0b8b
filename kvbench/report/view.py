"""What a report needs of one run, and nothing more: small arrays instead of a million rows.

A report may stand over many runs, each with a million rows. They are read one after the other and
each is folded into a `RunView` of a few hundred numbers, so the memory of a report is that of its
largest run. The same numbers feed the charts and the sentences beside them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from kvbench.records.decisions import read_decisions
from kvbench.records.evidence import read_evidence
from kvbench.records.intervals import (
    Interval,
    excess_by_session,
    quantile_interval,
    sum_interval,
)
from kvbench.records.stats import latencies, quantile, quantiles
from kvbench.records.verdict import Verdict, read_verdict
from kvbench.report.answers import answers_by_context
from kvbench.report.believed import believed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from kvbench.records.evidence import Evidence
    from kvbench.records.manifest import Manifest
    from kvbench.records.run import RunFolder
    from kvbench.records.server import ServerSeries
    from kvbench.records.summary import Summary
    from kvbench.records.validity import Limits
    from kvbench.report.answers import Answers
    from kvbench.report.believed import Believed

TURNS_SHOWN = 50
CURVE_POINTS = 250
SCATTER_POINTS = 1000
SLOWEST = 10


@dataclass(frozen=True, slots=True)
class Curve:
    """A cumulative distribution: `share[i]` of all turns needed at most `seconds[i]`.

    The share ends below 1 where turns failed.
    """

    seconds: NDArray[np.float64]
    share: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Series:
    """Values of one run along an axis (turn number, or seconds of the run); NaN is unknown.

    Attributes:
        at: The axis.
        hit_rate: Token-weighted, of the turns there.
        ceiling: Of the same turns.
        ttft_low: 5 of 100 turns were no slower; seconds, +inf for failures.
        ttft_mid: Median.
        ttft_high: 95 of 100 turns were no slower.
    """

    at: NDArray[np.float64]
    hit_rate: NDArray[np.float64]
    ceiling: NDArray[np.float64]
    ttft_low: NDArray[np.float64]
    ttft_mid: NDArray[np.float64]
    ttft_high: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its interval of 95 %; NaN is unknown, None: it is counted, not estimated."""

    value: float
    interval: Interval | None = None


@dataclass(frozen=True, slots=True)
class Memory:
    """What the pods said of their KV cache over the run; empty where they said nothing.

    Attributes:
        at: Seconds of the run.
        fullest: Referenced share of the fullest pod's blocks.
        emptiest: Of the emptiest pod's.
        evictions_at: Middles of the stretches between two looks.
        evictions: Blocks given up per second in them, over all pods.
    """

    at: NDArray[np.float64]
    fullest: NDArray[np.float64]
    emptiest: NDArray[np.float64]
    evictions_at: NDArray[np.float64]
    evictions: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SlowTurn:
    """One of the slowest answered turns; None is unknown.

    `cause` is why the prediction was not met ("none": it was), `reason` why the router chose the
    pod, `regret_s` the expected seconds to first token there less those at the best pod.
    """

    session: str
    turn: int
    pod: str | None
    policy: str | None
    prompt_tokens: int | None
    cached_tokens: int | None
    predicted_tokens: int | None
    cause: str | None
    at_s: float
    ttft_s: float
    reason: str | None = None
    regret_s: float | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """Turns that failed in one way."""

    kind: str
    turns: int
    example: str | None


@dataclass(frozen=True, slots=True)
class RunView:
    """One run, folded.

    Attributes:
        manifest: As found.
        summary: Of all its rows.
        reasons: Why it may not be judged; empty is valid.
        ttft: Distribution of the TTFT from the actual send.
        lateness: Distribution of how late turns were sent.
        by_turn: Along the number of the turn in its session.
        by_time: Along the seconds of the run.
        last_turn: The highest turn number, shown or not.
        uncached: Uncached prompt tokens of a sample of answered turns.
        uncached_ttft_s: Their TTFT.
        by_hit_share: Along the share of a turn's prompt that was cached, in tenths.
        hit_rate: Of all turns, with its interval.
        ttft_p95: Likewise.
        tpot_p95: Likewise.
        believed: What the router predicted, and what was delivered.
        memory: What the pods said of their KV cache.
        verdict: What its gates said last; None if they were never asked.
        slowest: The slowest answered turns, slowest first.
        failures: The failed ones, by kind.
        answers: What is wrong with answers, by context; empty where nothing is.
    """

    manifest: Manifest
    summary: Summary
    reasons: tuple[str, ...]
    ttft: Curve
    lateness: Curve
    by_turn: Series
    by_time: Series
    last_turn: int
    uncached: NDArray[np.float64]
    uncached_ttft_s: NDArray[np.float64]
    by_hit_share: Series
    hit_rate: Estimate
    ttft_p95: Estimate
    tpot_p95: Estimate
    believed: Believed
    memory: Memory
    verdict: Verdict | None
    slowest: tuple[SlowTurn, ...]
    failures: tuple[Failure, ...]
    answers: tuple[Answers, ...]


def view_run(folder: RunFolder, limits: Limits) -> RunView:
    """Read a run and fold it.

    Raises:
        InputError: Its files cannot be read.
    """
    return view(read_evidence(folder, limits))


def view(evidence: Evidence) -> RunView:
    """Fold what was read of a run."""
    manifest, frame, summary = evidence.manifest, evidence.frame, evidence.summary
    turns = frame["turn"].to_numpy(dtype=np.float64)
    sampled = _sample(
        frame[frame["ok"] & frame["ttft_s"].notna() & frame["uncached_tokens"].notna()]
    )
    return RunView(
        manifest=manifest,
        summary=summary,
        reasons=evidence.reasons,
        ttft=_curve(latencies(frame, "ttft_s")),
        lateness=_curve(frame["lateness_s"].dropna().to_numpy(dtype=np.float64)),
        by_turn=_series(frame[turns <= TURNS_SHOWN], turns[turns <= TURNS_SHOWN]),
        by_time=_series(frame, _moments(frame)),
        last_turn=int(turns.max()) if len(turns) else 0,
        uncached=sampled["uncached_tokens"].to_numpy(dtype=np.float64),
        uncached_ttft_s=sampled["ttft_s"].to_numpy(dtype=np.float64),
        by_hit_share=_by_hit_share(frame),
        hit_rate=_hit_rate(frame, summary),
        ttft_p95=_p95(frame, "ttft_s"),
        tpot_p95=_p95(frame, "tpot_s"),
        believed=believed(frame, manifest.block_size or 1),
        memory=_memory(evidence.server),
        verdict=read_verdict(evidence.folder),
        slowest=_slowest(frame, evidence.folder.decisions_path),
        failures=_failures(frame, summary),
        answers=answers_by_context(frame),
    )


def name_arms(views: Sequence[RunView]) -> dict[str, RunView]:
    """Return the views by the name of their arm, made unique: "prefix", "prefix (2)"."""
    named: dict[str, RunView] = {}
    for view in views:
        stem, number = view.summary.arm[:40], 1
        while (name := stem if number == 1 else f"{stem} ({number})") in named:
            number += 1
        named[name] = view
    return named


def _curve(values: NDArray[np.float64]) -> Curve:
    if not len(values):
        return Curve(values, values)
    answered = np.isfinite(values).sum() / len(values)
    share = np.union1d(np.arange(1, CURVE_POINTS) / CURVE_POINTS, [answered])
    share = share[(share <= answered) & (share > 0)]
    return Curve(np.array(quantiles(values, share.tolist())), share)


def _moments(frame: pd.DataFrame) -> NDArray[np.float64]:
    """Return, for every row, the middle of the stretch of the run in which it was due."""
    due: NDArray[np.float64] = frame["intended_s"].to_numpy(dtype=np.float64)
    if not len(due):
        return due
    stretches = int(np.clip(len(due) // 20, 4, 40))
    width = max(float(due.max()) / stretches, 1e-9)
    return (np.minimum(np.maximum(due, 0.0) // width, stretches - 1) + 0.5) * width


def _series(frame: pd.DataFrame, at: NDArray[np.float64]) -> Series:
    """Return the values of `frame` grouped by `at` (one value per row)."""
    known = frame["cached_tokens"].notna() & frame["prompt_tokens"].notna()
    bounded = known & frame["ceiling_tokens"].notna()
    sums = pd.DataFrame(
        {
            "prompt": frame["prompt_tokens"].where(known),
            "cached": frame["cached_tokens"].where(known),
            "planned": frame["planned_prompt_tokens"].fillna(frame["prompt_tokens"]).where(bounded),
            "ceiling": frame["ceiling_tokens"].where(bounded),
        }
    )
    grouped = sums.groupby(at).sum()
    ttft = frame["ttft_s"].where(frame["ok"], np.inf)
    bands = [quantiles(part.dropna().to_numpy(), [0.05, 0.5, 0.95]) for _, part in ttft.groupby(at)]
    low, mid, high = np.array(bands, dtype=np.float64).reshape(-1, 3).T
    prompt, possible = grouped["prompt"].to_numpy(), grouped["planned"].to_numpy()
    return Series(
        at=grouped.index.to_numpy(dtype=np.float64),
        hit_rate=grouped["cached"].to_numpy() / np.where(prompt > 0, prompt, np.nan),
        ceiling=grouped["ceiling"].to_numpy() / np.where(possible > 0, possible, np.nan),
        ttft_low=low,
        ttft_mid=mid,
        ttft_high=high,
    )


def _by_hit_share(frame: pd.DataFrame) -> Series:
    """Return the answered turns by the tenth of the prompt that was cached; not fewer than 3."""
    known = frame[frame["ok"] & frame["hit_share"].notna() & frame["ttft_s"].notna()]
    tenths = np.minimum(known["hit_share"].to_numpy(dtype=np.float64) // 0.1, 9.0) * 0.1 + 0.05
    places, counts = np.unique(tenths.round(2), return_counts=True)
    kept = np.isin(tenths.round(2), places[counts >= 3])
    return _series(known[kept], tenths[kept].round(2))


def _hit_rate(frame: pd.DataFrame, summary: Summary) -> Estimate:
    if summary.hits.rate is None:
        return Estimate(np.nan)
    known = frame[frame["cached_tokens"].notna() & frame["prompt_tokens"].notna()]
    columns = known[["cached_tokens", "prompt_tokens"]].to_numpy(dtype=np.float64)
    return Estimate(
        summary.hits.rate,
        sum_interval(columns, _codes(known), lambda sums: sums[:, 0] / sums[:, 1], seed=0),
    )


def _p95(frame: pd.DataFrame, column: str) -> Estimate:
    values = frame[column].to_numpy(dtype=np.float64, copy=True)
    values[~frame["ok"].to_numpy(dtype=bool)] = np.inf
    known = ~np.isnan(values)
    values, sessions = values[known], _codes(frame)[known]
    if not len(values):
        return Estimate(np.nan)
    interval = quantile_interval(values, excess_by_session(values, sessions, 0.95), 0.95)
    return Estimate(quantile(values, 0.95), interval)


def _codes(frame: pd.DataFrame) -> NDArray[np.int64]:
    codes, _ = frame["session"].factorize()
    return np.asarray(codes, dtype=np.int64)


def _memory(server: Mapping[str, ServerSeries]) -> Memory:
    """Bring the pods' looks, each taken a moment after the other, to the first pod's moments."""
    pods = [series for series in server.values() if series.kind == "pod"]
    none = np.empty(0)
    at = next((pod.at_s for pod in pods if "kv_usage" in pod.numbers), none)
    usage = [_at(pod, "kv_usage", at) for pod in pods]
    fullest = emptiest = none
    if len(at):
        fullest, emptiest = np.fmax.reduce(usage), np.fmin.reduce(usage)
    looks = next((pod.at_s for pod in pods if "evictions" in pod.numbers), none)
    counts = [_at(pod, "evictions", looks) for pod in pods]
    together = np.sum(counts, axis=0) if len(looks) else none
    return Memory(
        at=at,
        fullest=fullest,
        emptiest=emptiest,
        evictions_at=(looks[1:] + looks[:-1]) / 2,
        evictions=np.diff(together) / np.maximum(np.diff(looks), 1e-9),
    )


def _at(pod: ServerSeries, word: str, moments: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a pod's values at other moments; NaN where it never said one."""
    values = pod.numbers.get(word, np.full(len(pod.at_s), np.nan))
    known = np.isfinite(values)
    if not known.any():
        return np.full(len(moments), np.nan)
    return np.asarray(np.interp(moments, pod.at_s[known], values[known]), dtype=np.float64)


def _sample(frame: pd.DataFrame) -> pd.DataFrame:
    """Return at most `SCATTER_POINTS` rows, evenly spread over the run: no chance in a report."""
    if len(frame) <= SCATTER_POINTS:
        return frame
    return frame.iloc[np.linspace(0, len(frame) - 1, SCATTER_POINTS).astype(int)]


def _slowest(frame: pd.DataFrame, file: Path) -> tuple[SlowTurn, ...]:
    worst = frame[frame["ok"]].nlargest(SLOWEST, "ttft_s")
    decisions = read_decisions(file, set(worst["request_id"]))
    turns = []
    for _, row in worst.iterrows():
        tries = decisions.get(str(row["request_id"]))
        decided = tries[-1] if tries else None
        turns.append(
            SlowTurn(
                session=str(row["session"]),
                turn=int(row["turn"]),
                pod=_text(row["pod"]),
                policy=_text(row["policy"]),
                prompt_tokens=_count(row["prompt_tokens"]),
                cached_tokens=_count(row["cached_tokens"]),
                predicted_tokens=_count(row["predicted_tokens"]),
                cause=_text(row["prediction_cause"]),
                at_s=float(row["sent_s"]),
                ttft_s=float(row["ttft_s"]),
                reason=decided.reason if decided else None,
                regret_s=decided.regret_s if decided else None,
            )
        )
    return tuple(turns)


def _failures(frame: pd.DataFrame, summary: Summary) -> tuple[Failure, ...]:
    def example(kind: str) -> str | None:
        said = frame["error_message"][frame["error"] == kind].dropna()
        return str(said.iloc[0]) if len(said) else None

    return tuple(Failure(kind, turns, example(kind)) for kind, turns in summary.failed.items())


def _count(value: float) -> int | None:
    return None if pd.isna(value) else int(value)


def _text(value: object) -> str | None:
    return None if pd.isna(value) else str(value)  # type: ignore[call-overload]
