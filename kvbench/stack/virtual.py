"""A run in virtual time: the same folder as a measured one, made in seconds and without a socket.

A plan is played on simulated pods (`kvbench.oracle.play`), and what every turn would have got
becomes its row. So gates, reports, comparisons and ladders work on it as on any run, exactly and
the same on every machine. What it cannot show is anything that only sockets and machines do:
lateness, failures, the cost of a decision.

The pods' counters are written as two snapshots, before and after; what lies between is not kept.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from kvbench import __version__
from kvbench.clock import utc
from kvbench.engine.profiles import profile
from kvbench.engine.values import EngineConfig
from kvbench.errors import InputError
from kvbench.gates.file import read_gates
from kvbench.oracle.load import Reading, kind_of, load_script
from kvbench.oracle.play import Fleet, play
from kvbench.policies.prediction import Evidence, cause_of
from kvbench.records.manifest import Ceiling, Manifest, PodCounters, Workload
from kvbench.records.reader import write_parquet
from kvbench.records.run import RunFolder
from kvbench.records.schema import TurnRecord
from kvbench.records.server import Snapshot
from kvbench.records.writer import RowWriter

if TYPE_CHECKING:
    from pathlib import Path

    from kvbench.oracle.row import Row, Summary

_ZERO = 0.0
"""Second 0 of every virtual run, seconds since 1970: the same run, the same bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualPods:
    """The pods that a plan is played on.

    Attributes:
        count: How many.
        profile: Whose timing they have.
        num_gpu_blocks: Blocks of each; None takes what fits on the profile's devices.
        block_size: Tokens per block.
        slower: Factor on all times: 1.05 is five percent slower.
    """

    count: int = 3
    profile: str = "llama-3.1-8b-l4"
    num_gpu_blocks: int | None = None
    block_size: int = 16
    slower: float = 1.0

    def fleet(self, policy: str, seed: int) -> Fleet:
        """Return them, under a policy."""
        device = profile(self.profile)
        blocks = self.num_gpu_blocks or device.num_gpu_blocks(self.block_size)
        config = EngineConfig(
            num_gpu_blocks=blocks,
            block_size=self.block_size,
            max_model_len=(blocks - 1) * self.block_size + 1,
        )
        return Fleet(self.count, config, device.time.faster(1 / self.slower), policy, seed)


def run_virtual(
    file: Path,
    policy: str,
    *,
    pods: VirtualPods,
    runs: Path,
    seed: int | None = None,
    limit: int | None = None,
    name: str | None = None,
    command: tuple[str, ...] = (),
) -> RunFolder:
    """Play a workload or a trace, and return the run's folder.

    Args:
        file: Workload file or trace.
        policy: Who chooses the pod.
        pods: What it is played on.
        runs: Folder of all runs.
        seed: Root seed; None is the workload's own.
        limit: Only so many turns, the first ones.
        name: What the run is called; None takes the workload's name and the policy.
        command: The command line, for the manifest.

    Raises:
        InputError: The file, the policy or a setting is wrong.
    """
    script = load_script(file, Reading(pods.block_size, seed, limit))
    if not script.timed:
        raise InputError(
            "expected turns with times, got a log without",
            where=str(file),
            hint="`kvbench simulate` plays it one request after the other",
        )
    run = play(script, pods.fleet(policy, seed or 0))
    folder = RunFolder.create(runs, name or f"{script.name}-{policy}", utc())
    sessions: set[str] = set()
    ceiling = prompt = count = 0
    with RowWriter(folder.rows_path(0)) as writer:
        for row in run:
            writer.append(_record(row, policy))
            sessions.add(row.session)
            count += 1
            ceiling += row.ceiling_tokens
            prompt += row.prompt_tokens
    summary = run.summary()
    _snapshots(folder, summary)
    workload = kind_of(file) == "workload"
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    moment = utc().isoformat()
    folder.write_manifest(
        Manifest(
            kvbench_version=__version__,
            created=moment,
            started_at="1970-01-01T00:00:00+00:00",
            ended_at=moment,
            state="finished",
            command=list(command),
            name=name or script.name,
            arm=policy,
            target="virtual time",
            model=pods.profile,
            workload=Workload(
                file=str(file) if workload else None,
                trace=None if workload else str(file),
                sha256=digest,
                limit=limit,
            ),
            seed=seed,
            isolation="none",
            block_size=pods.block_size,
            planned_turns=count,
            planned_sessions=len(sessions),
            ceiling=Ceiling(tokens=ceiling, prompt_tokens=prompt),
            pods={pod.pod: PodCounters() for pod in summary.pods},
            gates=[gate.text for gate in read_gates(file)] if workload else [],
        )
    )
    write_parquet(folder)
    return folder


def _record(row: Row, policy: str) -> TurnRecord:
    last = row.arrival_s + row.e2e_s
    first = row.arrival_s + row.ttft_s
    believed = Evidence(
        exact=False,  # no policy hears events here
        predicted=row.predicted_tokens,
        delivered=row.cached_tokens,
        our_tokens=row.prompt_tokens,
        their_tokens=row.prompt_tokens,
    )
    return TurnRecord(
        index=row.index,
        session=row.session,
        turn=row.turn,
        group=row.group,
        intended_s=row.arrival_s,
        sent_s=row.arrival_s,
        headers_s=row.arrival_s,
        first_token_s=first,
        first_answer_s=first,
        last_token_s=last,
        end_s=last,
        status=200,
        finish_reason="length",
        planned_prompt_tokens=row.prompt_tokens,
        prompt_tokens=row.prompt_tokens,
        cached_tokens=row.cached_tokens,
        completion_tokens=row.completion_tokens,
        ceiling_tokens=row.ceiling_tokens,
        max_tokens=row.completion_tokens,
        pod=row.pod,
        policy=policy,
        predicted_tokens=row.predicted_tokens,
        prediction_cause=cause_of(believed),
        request_id=str(row.index),
    )


def _snapshots(folder: RunFolder, summary: Summary) -> None:
    lines = []
    for pod in summary.pods:
        counted = {
            "queries": pod.prompt_tokens,
            "hits": pod.cached_tokens,
            "prompt_tokens": pod.prompt_tokens,
            "evictions": pod.evictions,
            "preemptions": pod.preemptions,
        }
        nothing = dict.fromkeys(counted, 0.0)
        for at, values in ((_ZERO, nothing), (_ZERO + summary.duration_s, counted)):
            snapshot = Snapshot(at=at, server=pod.pod, values=dict(values))
            lines.append(msgspec.json.encode(snapshot) + b"\n")
    folder.server_path.write_bytes(b"".join(lines))
