"""The manifest: what was run, how it went, and what the generator says against itself.

One JSON file per run folder. The process that starts a run writes it before the first turn, and
again at the end. It is read leniently (unknown keys are ignored, missing ones have defaults: an
old run must stay readable) and written strictly.

- Unknown is None, never 0 and never "".
- Moments are ISO 8601 in UTC. Rows hold seconds from `started_at`.
- No secrets: `command` is written as given, so a key belongs in a file or the environment.
"""

from __future__ import annotations

import os
import platform
from typing import Literal

import msgspec

MANIFEST_SCHEMA = 1

State = Literal["running", "finished", "interrupted", "failed"]
"""How far a run came. "interrupted": somebody stopped it; "failed": a part of the stack broke."""


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """What the plan was made of.

    Attributes:
        file: The workload file, as given.
        spec: The workload with all defaults filled in.
        trace: The trace file, as given, where a trace was replayed.
        sha256: Of the bytes of the workload file or trace.
        speed: Factor by which a trace was replayed faster than recorded.
        limit: How many rows of a trace were taken.
    """

    file: str | None = None
    spec: dict[str, object] = {}
    trace: str | None = None
    sha256: str | None = None
    speed: float | None = None
    limit: int | None = None


class Ceiling(msgspec.Struct, frozen=True, kw_only=True):
    """What one pod with an endless cache would have had cached, over the whole plan."""

    tokens: int
    prompt_tokens: int

    @property
    def hit_rate(self) -> float | None:
        """Share of the prompt tokens, 0 to 1; None for a plan without tokens."""
        return self.tokens / self.prompt_tokens if self.prompt_tokens else None


class Testimony(msgspec.Struct, frozen=True, kw_only=True):
    """What one load worker says about itself: `load-<worker>.json`.

    Attributes:
        worker: Which one, from 0.
        turns: Turns that it sent.
        lateness_p50_s: Median of how late turns were sent, seconds; p99 and max likewise.
        cpu_share: CPU seconds per second of the run, of the whole process; 1.0 is one core.
        loop_delay_p50_s: How late timers fired in its event loop, seconds; p99 and max likewise.
        max_in_flight: Most turns open at once.
        kernel_stamps: Whether arrivals carry the kernel's time of receipt.
        held_back: Turns that were due while `max_in_flight` were open, and so were sent late.
        built_late: Requests that were not ready when they were due.
    """

    worker: int = 0
    turns: int = 0
    lateness_p50_s: float | None = None
    lateness_p99_s: float | None = None
    lateness_max_s: float | None = None
    cpu_share: float | None = None
    loop_delay_p50_s: float | None = None
    loop_delay_p99_s: float | None = None
    loop_delay_max_s: float | None = None
    max_in_flight: int | None = None
    kernel_stamps: bool | None = None
    held_back: int | None = None
    built_late: int | None = None


class CacheCounters(msgspec.Struct, frozen=True, kw_only=True):
    """A pod's own `prefix_cache_queries` and `prefix_cache_hits`, in tokens."""

    queries: int
    hits: int


class PodCounters(msgspec.Struct, frozen=True, kw_only=True):
    """A pod's counters before the first turn and after the last; None: could not be read."""

    before: CacheCounters | None = None
    after: CacheCounters | None = None


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """Turns, counted at the end of the run.

    Attributes:
        planned: Turns of the plan.
        rows: Rows found, duplicates and broken lines left out.
        ok: Rows answered in full.
        failed: The others, by kind of error.
    """

    planned: int | None = None
    rows: int = 0
    ok: int = 0
    failed: dict[str, int] = {}


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Where the load came from."""

    cpus: int | None = None
    platform: str | None = None
    python: str | None = None


def this_machine() -> Machine:
    """Return the fingerprint of the machine this runs on."""
    return Machine(
        cpus=os.cpu_count(),
        platform=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
    )


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """One run.

    Attributes:
        schema: Version of this file's form.
        id: The run folder's name.
        kvbench_version: Who wrote it.
        created: When the folder was made.
        started_at: The moment that is second 0 of the rows.
        ended_at: When the last row was written.
        state: How far it came.
        command: The command line.
        name: The run's name as chosen, or the workload's.
        arm: What tells this run from those it is compared with: usually the policy.
        target: Base URL the load was sent to.
        model: Model asked for.
        tokenizer: Tokenizer that counted the plan.
        workload: What the plan was made of.
        seed: The root seed.
        api: "chat" or "completions".
        history: "planned" or "answers".
        isolation: How the run kept itself from the caches of earlier runs: "salt", "none".
        block_size: Tokens per block, as the ceiling assumes.
        planned_turns: Turns of the plan.
        planned_sessions: Sessions of the plan.
        ceiling: Of the plan, by its own tokens.
        ids_ceiling: Of a trace, by its block ids.
        counts: What became of the turns.
        load: What the generator's workers say about themselves.
        validity: Reasons, in words, why the measurement may not be judged; empty is valid.
        pods: Server-side counters by pod, named as in `TurnRecord.pod`.
        machine: Where the load came from.
        gates: What the workload wants to be judged by, as written.
        aborted: The gate that stopped the run because it had failed for certain.
        max_lateness_s: How late the 99th of 100 turns may have been sent, as accepted when the run
            was made; None is the usual limit.
        warm: Whether the caches were meant to hold what earlier runs left.
    """

    schema: int = MANIFEST_SCHEMA
    id: str = ""
    kvbench_version: str | None = None
    created: str | None = None
    started_at: str | None = None
    ended_at: str | None = None
    state: State = "running"
    command: list[str] = []
    name: str | None = None
    arm: str | None = None
    target: str | None = None
    model: str | None = None
    tokenizer: str | None = None
    workload: Workload = Workload()
    seed: int | None = None
    api: str | None = None
    history: str | None = None
    isolation: str | None = None
    block_size: int | None = None
    planned_turns: int | None = None
    planned_sessions: int | None = None
    ceiling: Ceiling | None = None
    ids_ceiling: Ceiling | None = None
    counts: Counts | None = None
    load: list[Testimony] = []
    validity: list[str] = []
    pods: dict[str, PodCounters] = {}
    machine: Machine | None = None
    gates: list[str] = []
    aborted: str | None = None
    max_lateness_s: float | None = None
    warm: bool = False
