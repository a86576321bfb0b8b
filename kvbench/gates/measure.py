"""From a run and a measure to a number, with its interval where it has one.

Turns are taken as they are: a failed one is infinitely slow in every percentile, is an error, and
is no good turn. Conditions on `context` go by the prompt tokens that the pod counted, or by the
plan's where it never answered; a condition on `pod` leaves out turns whose pod is unknown.

What servers say is taken over the time in which turns were sent. A pod that does not expose a
number makes it unknown: a maximum over the others would hide the one that is full.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import numpy as np

from kvbench.records.intervals import (
    CONFIDENCE,
    Interval,
    excess_by_session,
    quantile_interval,
    share_interval,
    sum_interval,
)
from kvbench.records.stats import Balance, hits, quantile, traffic
from kvbench.records.table import chunk_gaps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import pandas as pd
    from numpy.typing import NDArray

    from kvbench.gates.gate import Condition, Measure
    from kvbench.records.evidence import Evidence
    from kvbench.records.intervals import Floats, Sessions
    from kvbench.records.server import ServerSeries

_COLUMNS = {
    "ttft": "ttft_s",
    "ttft_due": "ttft_intended_s",
    "tpot": "tpot_s",
    "e2e": "e2e_s",
}


@dataclass(frozen=True, slots=True)
class Measurement:
    """A number of a run.

    Attributes:
        value: NaN where there is nothing to measure; +inf where failures reach it.
        interval: Where it is believed to lie; None: it is counted, not estimated.
        turns: Turns it was taken over; None where servers said it.
        sessions: Their sessions.
        missing: Why there is no value, in words.
    """

    value: float
    interval: Interval | None = None
    turns: int | None = None
    sessions: int | None = None
    missing: str | None = None


def measure(
    evidence: Evidence, what: Measure, *, seed: int = 0, confidence: float = CONFIDENCE
) -> Measurement:
    """Return a number of a run.

    Args:
        evidence: The run.
        what: Which number.
        seed: Of the draws that intervals are made of.
        confidence: Share of cases in which an interval holds the true number.
    """
    if what.subject.server:
        return _server(evidence, what)
    frame = _in_scope(evidence, what.scope)
    if frame.empty:
        text = ", ".join(map(str, what.scope))
        return Measurement(math.nan, turns=0, missing=f"no turn has {text}" if text else "no turns")
    turns = _Turns(frame, _codes(frame), what, seed, confidence)
    found = _of_turns(evidence, turns)
    return replace(found, turns=len(frame), sessions=int(turns.sessions.max()) + 1)


@dataclass(frozen=True, slots=True)
class _Turns:
    """The turns that count, the session of each (from 0), and how they are measured."""

    frame: pd.DataFrame
    sessions: Sessions
    what: Measure
    seed: int
    confidence: float

    @property
    def failed(self) -> NDArray[np.bool_]:
        return ~self.frame["ok"].to_numpy(dtype=bool)


def _of_turns(evidence: Evidence, turns: _Turns) -> Measurement:
    match turns.what.subject.name:
        case "hit_rate":
            found = _hit_rate(turns)
        case "errors":
            found = _share(turns, turns.failed)
        case "goodput":
            found = _share(turns, _good(turns))
        case "throughput":
            found = _throughput(turns.frame)
        case "balance" | "uncached_balance":
            found = _balance(evidence, turns)
        case "itl":
            found = _gaps(turns)
        case name:
            found = _latency(turns, _COLUMNS[name])
    return found


def _latency(turns: _Turns, column: str) -> Measurement:
    values = turns.frame[column].to_numpy(dtype=np.float64, copy=True)
    values[turns.failed] = np.inf
    known = ~np.isnan(values)
    values, sessions = values[known], turns.sessions[known]
    q = turns.what.quantile
    assert q is not None
    if not len(values):
        return Measurement(math.nan, missing="no turn has this latency")
    value = quantile(values, q)
    if q == 1:  # the greatest of all is what it is
        return Measurement(value)
    excess = excess_by_session(values, sessions, q)
    return Measurement(value, quantile_interval(values, excess, q, turns.confidence))


def _gaps(turns: _Turns) -> Measurement:
    """Measure gaps between chunks: many to a turn, so they are counted turn by turn."""
    q = turns.what.quantile
    assert q is not None
    failed, sessions = turns.failed, turns.sessions
    lists = turns.frame["chunk_gaps_s"].array.__arrow_array__().combine_chunks()
    lengths = lists.value_lengths().to_numpy()
    gaps = chunk_gaps(turns.frame)
    lost = np.full(int(failed.sum()), np.inf)
    values = np.concatenate([gaps, lost]) if len(lost) else gaps
    if not len(values):
        return Measurement(math.nan, missing="no answer came in more than one chunk")
    value = quantile(values, q)
    if q == 1:
        return Measurement(value)
    ends = np.cumsum(lengths)
    counts = np.bincount(sessions, weights=lengths + failed)

    def excess(at: float) -> Floats:
        below = np.zeros(len(gaps) + 1, dtype=np.int32)  # as many gaps as fit into memory
        np.cumsum(gaps <= at, dtype=np.int32, out=below[1:])
        by_turn = below[ends] - below[ends - lengths] + (failed if at == np.inf else 0)
        apart = np.bincount(sessions, weights=by_turn) - q * counts
        return np.asarray(apart[counts > 0], dtype=np.float64)

    return Measurement(value, quantile_interval(values, excess, q, turns.confidence))


def _hit_rate(turns: _Turns) -> Measurement:
    frame, of_ceiling = turns.frame, turns.what.of_ceiling
    found = hits(frame)
    value = found.attained if of_ceiling else found.rate
    if value is None:
        if of_ceiling and found.ceiling == 0:
            return Measurement(math.nan, missing="the ceiling is 0 %: no prompt repeats another")
        ceiling = " or the ceiling is unknown" if of_ceiling else ""
        return Measurement(math.nan, missing=f"the pods do not report cached tokens{ceiling}")
    known = frame["cached_tokens"].notna() & frame["prompt_tokens"].notna()
    parts = [frame["cached_tokens"], frame["prompt_tokens"]]
    if of_ceiling:
        known &= frame["ceiling_tokens"].notna()
        planned = frame["planned_prompt_tokens"].fillna(frame["prompt_tokens"])
        parts += [planned, frame["ceiling_tokens"]]
    columns = np.stack([part[known].to_numpy(dtype=np.float64) for part in parts], axis=1)
    fold = _attained if of_ceiling else _ratio
    sessions = turns.sessions[known.to_numpy()]
    return Measurement(value, sum_interval(columns, sessions, fold, turns.seed, turns.confidence))


def _share(turns: _Turns, chosen: NDArray[np.bool_]) -> Measurement:
    """Measure a share of turns: by sessions, and no surer than independent turns would be."""
    part, whole = int(chosen.sum()), len(chosen)
    columns = np.stack([chosen.astype(np.float64), np.ones(whole)], axis=1)
    drawn = sum_interval(columns, turns.sessions, _ratio, turns.seed, turns.confidence)
    single = share_interval(part, whole, turns.confidence)
    interval = Interval(min(drawn.low, single.low), max(drawn.high, single.high))
    return Measurement(part / whole, interval)


def _good(turns: _Turns) -> NDArray[np.bool_]:
    good = ~turns.failed
    for limit in turns.what.limits:
        values = turns.frame[_COLUMNS[limit.subject]].to_numpy(dtype=np.float64)
        # An answer of one token has no time per output token, and no limit to miss.
        within = values < limit.seconds if limit.comparison == "<" else values <= limit.seconds
        good &= within | np.isnan(values)
    return good


def _throughput(frame: pd.DataFrame) -> Measurement:
    seconds = float(frame["last_token_s"].max() - frame["sent_s"].min())
    if not seconds > 0:
        return Measurement(math.nan, missing="no token came")
    return Measurement(float(frame["completion_tokens"].sum()) / seconds)


def _balance(evidence: Evidence, turns: _Turns) -> Measurement:
    pods = [name for name in evidence.manifest.pods if _pod_fits(name, turns.what.scope)]
    parts = traffic(turns.frame, pods)
    uncached = turns.what.subject.name == "uncached_balance"
    balance = Balance.of(pod.uncached_tokens if uncached else pod.turns for pod in parts)
    if balance.max_over_mean is None:
        return Measurement(math.nan, missing="it is unknown which pods the turns went to")
    return Measurement(balance.max_over_mean)


# ── servers ──────────────────────────────────────────────────────────────────────────────────


def _server(evidence: Evidence, what: Measure) -> Measurement:
    pods = {
        name: series
        for name, series in evidence.server.items()
        if series.kind == "pod" and _pod_fits(name, what.scope)
    }
    if not pods:
        return Measurement(
            math.nan,
            missing="no pod matches" if evidence.server else "the run kept nothing of its servers",
        )
    per_second = what.subject.quantity == "per second"
    read = _rate if per_second else _known
    found = {name: read(series, what.subject.name) for name, series in pods.items()}
    mute = [name for name, part in found.items() if not len(part)]
    if mute:
        return Measurement(math.nan, missing=f"{mute[0]} does not expose {what.subject.name}")
    if per_second:
        return Measurement(float(sum(part[0] for part in found.values())))
    together = np.concatenate(list(found.values()))
    if what.statistic == "mean":
        return Measurement(float(together.mean()))
    q = what.quantile
    assert q is not None
    return Measurement(quantile(together, q))


def _known(series: ServerSeries, word: str) -> Floats:
    return series.known(word)


def _rate(series: ServerSeries, word: str) -> Floats:
    rate = series.rate(word)
    return np.array([] if rate is None else [rate])


# ── scope ────────────────────────────────────────────────────────────────────────────────────


def _in_scope(evidence: Evidence, scope: Iterable[Condition]) -> pd.DataFrame:
    frame = evidence.frame
    keep = np.ones(len(frame), dtype=bool)
    if evidence.manifest.aborted:  # what a failed gate held back is no failure of the target
        keep &= (frame["error"].astype(object) != "not_sent").to_numpy(dtype=bool)
    for condition in scope:
        if condition.key in {"turn", "context"}:
            keep &= _numbers(frame, condition)
        else:
            column = frame[condition.key].astype("category")
            fits = [_fits(str(name), condition) for name in column.cat.categories]
            keep &= np.array([*fits, False])[column.cat.codes.to_numpy()]  # the last: unknown
    return frame if keep.all() else frame[keep]


def _numbers(frame: pd.DataFrame, condition: Condition) -> NDArray[np.bool_]:
    if condition.key == "turn":
        values = frame["turn"].to_numpy(dtype=np.float64)
    else:
        values = frame["prompt_tokens"].fillna(frame["planned_prompt_tokens"]).to_numpy()
    compare: dict[str, Callable[[Floats, float], NDArray[np.bool_]]] = {
        "=": np.equal,
        "!=": np.not_equal,
        "<": np.less,
        "<=": np.less_equal,
        ">": np.greater,
        ">=": np.greater_equal,
    }
    assert isinstance(condition.value, float)
    return compare[condition.comparison](values, condition.value)


def _pod_fits(name: str, scope: Iterable[Condition]) -> bool:
    return all(_fits(name, condition) for condition in scope if condition.key == "pod")


def _fits(name: str, condition: Condition) -> bool:
    same = fnmatchcase(name, str(condition.value).replace("[", "[[]"))
    return same == (condition.comparison == "=")


def _codes(frame: pd.DataFrame) -> Sessions:
    """Return the session of each turn as a number from 0, without gaps."""
    codes, _ = frame["session"].factorize()
    return np.asarray(codes, dtype=np.int64)


def _ratio(sums: Floats) -> Floats:
    return np.asarray(sums[:, 0] / sums[:, 1])


def _attained(sums: Floats) -> Floats:
    return np.asarray((sums[:, 0] / sums[:, 1]) / (sums[:, 3] / sums[:, 2]))
