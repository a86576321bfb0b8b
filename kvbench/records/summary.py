"""A run in one value: what a table row, a report and a gate are made of.

A `Summary` is a fold over rows and a manifest; nothing else is asked. It says what was measured and
does not judge whether it may be believed: that is `kvbench.records.validity`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvbench.records.stats import Balance, Hits, Latency, PodTraffic, gaps, hits, latencies, traffic
from kvbench.text.degeneration import LEAST_WORDS

if TYPE_CHECKING:
    import pandas as pd

    from kvbench.records.manifest import Manifest


@dataclass(frozen=True, slots=True)
class Summary:
    """One run.

    Attributes:
        run: The run's id.
        arm: What tells it from others: the manifest's word, else the policy of its rows, else
            the run's id.
        turns: Rows.
        planned: Turns of the plan; None if the manifest does not say.
        failed: Turns that were not answered in full, by kind of error; most frequent first.
        sessions: Conversations.
        hits: Cached tokens, ceiling, unknown.
        ttft: Time to first token from the actual send, +inf for failures; likewise the others.
        ttft_intended: From when the turn should have been sent.
        tpot: Time per output token after the first.
        chunk_gap: Gaps between content chunks.
        e2e: From the actual send to the last token.
        lateness: How late turns were sent; turns never sent are left out.
        output_tokens: Completion tokens of all turns, by `usage`.
        wall_s: From the first send to the last token; None where no token came.
        pods: Traffic of every pod.
        turn_balance: Of turns over pods.
        uncached_balance: Of uncached prompt tokens over pods.
        late_reads: Turns whose first token was read together with later ones: their TTFT is an
            upper bound.
        judged: Answers that were long enough to be judged, or are none.
        degenerate: Of these, what something is wrong with, by kind; most frequent first.
        server_hit_rate: Hit rate by the pods' own counters, over all traffic they saw in the run;
            None where they were not read.
    """

    run: str
    arm: str
    turns: int
    planned: int | None
    failed: dict[str, int]
    sessions: int
    hits: Hits
    ttft: Latency
    ttft_intended: Latency
    tpot: Latency
    chunk_gap: Latency
    e2e: Latency
    lateness: Latency
    output_tokens: int
    wall_s: float | None
    pods: tuple[PodTraffic, ...]
    turn_balance: Balance
    uncached_balance: Balance
    late_reads: int
    judged: int
    degenerate: dict[str, int]
    server_hit_rate: float | None

    @property
    def failures(self) -> int:
        """Turns that were not answered in full."""
        return sum(self.failed.values())

    @property
    def tokens_per_s(self) -> float | None:
        """Output tokens of all turns per second of wall time; None where no token came."""
        return self.output_tokens / self.wall_s if self.wall_s else None


def summarise(frame: pd.DataFrame, manifest: Manifest) -> Summary:
    """Return the run's summary.

    Args:
        frame: All rows of the run, as `to_frame` or `read_frame` returns them.
        manifest: The run's manifest; whatever it does not say is unknown.
    """
    pods = traffic(frame, manifest.pods)
    return Summary(
        run=manifest.id,
        arm=arm_of(frame, manifest),
        turns=len(frame),
        planned=manifest.planned_turns,
        failed=_counts(frame["error"]),
        sessions=int(frame["session"].nunique()),
        hits=hits(frame),
        ttft=Latency.of(latencies(frame, "ttft_s")),
        ttft_intended=Latency.of(latencies(frame, "ttft_intended_s")),
        tpot=Latency.of(latencies(frame, "tpot_s")),
        chunk_gap=Latency.of(gaps(frame)),
        e2e=Latency.of(latencies(frame, "e2e_s")),
        lateness=Latency.of(frame["lateness_s"].dropna().to_numpy(dtype="float64")),
        output_tokens=int(frame["completion_tokens"].sum()),
        wall_s=_wall(frame),
        pods=pods,
        turn_balance=Balance.of(pod.turns for pod in pods),
        uncached_balance=Balance.of(pod.uncached_tokens for pod in pods),
        late_reads=int((frame["first_read_chunks"] > 1).sum()),
        judged=int((frame["degeneration"].notna() | _long(frame)).sum()),
        degenerate=_counts(frame["degeneration"]),
        server_hit_rate=_server_hit_rate(manifest),
    )


def arm_of(frame: pd.DataFrame, manifest: Manifest) -> str:
    """Return what a run is called among those it is compared with."""
    policies = frame["policy"].dropna().unique()
    policy = str(policies[0]) if len(policies) == 1 else None
    return manifest.arm or policy or manifest.name or manifest.id or "run"


def _counts(words: pd.Series[str]) -> dict[str, int]:
    """Return how often each word occurs, the most frequent first."""
    counts = words.astype(object).value_counts()
    return dict(sorted(((str(k), int(n)) for k, n in counts.items()), key=lambda e: (-e[1], e[0])))


def _long(frame: pd.DataFrame) -> pd.Series[bool]:
    """Return which answers are long enough to be judged."""
    return frame["ok"] & (frame["completion_tokens"] >= LEAST_WORDS)


def _wall(frame: pd.DataFrame) -> float | None:
    wall = float(frame["last_token_s"].max() - frame["sent_s"].min())
    return wall if wall > 0 else None  # NaN is not


def _server_hit_rate(manifest: Manifest) -> float | None:
    pods = [(p.before, p.after) for p in manifest.pods.values()]
    read = [(before, after) for before, after in pods if before and after]
    queries = sum(after.queries - before.queries for before, after in read)
    found = sum(after.hits - before.hits for before, after in read)
    whole = len(read) == len(pods) and all(a.queries >= b.queries for b, a in read)
    return found / queries if whole and queries > 0 else None
