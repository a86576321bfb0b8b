"""Runs that never happened: rows and folders with a known story, for reports and statistics."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from msgspec.structs import replace

from kvbench import seeds
from kvbench.records.manifest import (
    CacheCounters,
    Ceiling,
    Manifest,
    PodCounters,
    Testimony,
    Workload,
)
from kvbench.records.run import RunFolder
from kvbench.records.schema import TurnRecord
from kvbench.records.writer import RowWriter

if TYPE_CHECKING:
    from pathlib import Path

NOON = datetime(2026, 11, 29, 12, 0, 0)  # noqa: DTZ001 - only a name


def row(index: int = 0, **changes) -> TurnRecord:
    """Return one answered turn, with whatever should be different."""
    plain = TurnRecord(
        index=index,
        session="s0",
        turn=1,
        group="g0",
        intended_s=1.0 * index,
        sent_s=1.0 * index + 0.001,
        headers_s=1.0 * index + 0.002,
        first_token_s=1.0 * index + 0.201,
        first_answer_s=1.0 * index + 0.201,
        last_token_s=1.0 * index + 0.501,
        end_s=1.0 * index + 0.502,
        chunk_gaps_s=[0.1, 0.1, 0.1],
        first_read_chunks=1,
        status=200,
        finish_reason="length",
        planned_prompt_tokens=1000,
        prompt_tokens=1000,
        cached_tokens=512,
        completion_tokens=4,
        ceiling_tokens=768,
        max_tokens=4,
        pod="pod-0",
        policy="prefix",
        predicted_tokens=512,
        request_id=f"r{index}",
    )
    return replace(plain, **changes)


def failed_row(index: int = 0, error: str = "timeout", **changes) -> TurnRecord:
    """Return one turn that was sent and never answered."""
    nothing = dict.fromkeys(
        [
            "headers_s", "first_token_s", "first_answer_s", "last_token_s", "first_read_chunks",
            "finish_reason", "prompt_tokens", "cached_tokens", "completion_tokens", "status", "pod",
        ]
    )  # fmt: skip
    story = {"chunk_gaps_s": [], "error": error, "error_message": "no answer"}
    return row(index, **nothing | story | changes)


def story(
    policy: str = "prefix", *, sessions: int = 40, turns: int = 6, pods: int = 4, seed: int = 1
) -> list[TurnRecord]:
    """Return the rows of a plausible run: conversations that grow, over pods that cache.

    "prefix" keeps a session on its pod, "random" sends every turn anywhere, "sticky" sends half of
    the sessions to one pod.
    """
    chance = seeds.rng(seed, policy)
    rows = []
    homes = {
        s: 0 if policy == "sticky" and s % 2 else chance.randrange(pods) for s in range(sessions)
    }
    seen: dict[tuple[int, int], int] = {}
    group_seen: dict[tuple[int, int], int] = {}
    for session in range(sessions):
        now = 1.5 * session
        for turn in range(1, turns + 1):
            pod = chance.randrange(pods) if policy == "random" else homes[session]
            group, system = session % 5, 1536
            prompt = system + 420 * turn + chance.randrange(40)
            cached = seen.get((session, pod), group_seen.get((group, pod), 0))
            ceiling = (system + 420 * (turn - 1)) // 16 * 16
            cached = min(cached, ceiling)
            seen[session, pod] = prompt // 16 * 16
            group_seen[group, pod] = system
            ttft = 0.03 + (prompt - cached) * 2.2e-4 * chance.lognormvariate(0, 0.25)
            gaps = [0.02 * chance.lognormvariate(0, 0.3) for _ in range(23)]
            late = abs(chance.gauss(0, 4e-4))
            sent = now + late
            first = sent + ttft
            rows.append(
                row(
                    0,
                    session=f"s{session}", turn=turn, group=f"g{group}",
                    intended_s=now, sent_s=sent, headers_s=sent + 0.004,
                    first_token_s=first, first_answer_s=first, last_token_s=first + sum(gaps),
                    end_s=first + sum(gaps) + 1e-3, chunk_gaps_s=gaps,
                    planned_prompt_tokens=prompt, prompt_tokens=prompt, cached_tokens=cached,
                    ceiling_tokens=ceiling, completion_tokens=24, max_tokens=24, pod=f"pod-{pod}",
                    policy=policy, predicted_tokens=cached,
                )
            )  # fmt: skip
            now = first + sum(gaps) + chance.expovariate(1 / 3)
    rows.sort(key=lambda r: r.intended_s)
    return [replace(r, index=i, request_id=f"r{i}") for i, r in enumerate(rows)]


def manifest(rows: list[TurnRecord], **changes) -> Manifest:
    """Return the manifest that a finished run of `rows` would have."""
    plain = Manifest(
        kvbench_version="0.1.0",
        created="2026-11-29T12:00:00Z",
        started_at="2026-11-29T12:00:01Z",
        ended_at="2026-11-29T12:05:00Z",
        state="finished",
        command=["kvbench", "run", "workloads/chat.yaml"],
        name="chat",
        arm=rows[0].policy if rows else None,
        target="http://127.0.0.1:8000",
        model="qwen3-8b",
        workload=Workload(file="workloads/chat.yaml", sha256="ab" * 32),
        seed=1,
        api="chat",
        history="planned",
        isolation="salt",
        block_size=16,
        planned_turns=len(rows),
        planned_sessions=len({r.session for r in rows}),
        ceiling=Ceiling(
            tokens=sum(r.ceiling_tokens or 0 for r in rows),
            prompt_tokens=sum(r.planned_prompt_tokens or 0 for r in rows),
        ),
        load=[
            Testimony(turns=len(rows), lateness_p99_s=0.001, cpu_share=0.2, loop_delay_p99_s=0.002)
        ],
        pods={
            pod: PodCounters(
                before=CacheCounters(queries=1000, hits=100),
                after=CacheCounters(
                    queries=1000 + sum(r.prompt_tokens or 0 for r in rows if r.pod == pod),
                    hits=100 + sum(r.cached_tokens or 0 for r in rows if r.pod == pod),
                ),
            )
            for pod in sorted({r.pod for r in rows if r.pod})
        },
    )
    return replace(plain, **changes)


def written_run(
    root: Path, rows: list[TurnRecord], *, workers: int = 1, name: str = "chat", **changes
) -> RunFolder:
    """Write a run folder as a real run would: rows over workers by session, then the manifest."""
    folder = RunFolder.create(root, name, NOON)
    order = {name: i for i, name in enumerate(dict.fromkeys(r.session for r in rows))}
    for worker in range(workers):
        with RowWriter(folder.rows_path(worker)) as writer:
            for record in rows:
                if order[record.session] % workers == worker:
                    writer.append(record)
    folder.write_manifest(manifest(rows, **changes))
    return folder
