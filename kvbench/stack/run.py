"""One run, from a plan to its rows, statistics and report.

    look at the target → plan and ceiling → run folder → Locust in a process of its own → judge

Whatever happens after the folder was made (a target that dies, Ctrl-C, a killed generator), the
run is closed properly: the rows are counted, kept as a table, summarised and reported, and the
manifest says how far it came.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

import msgspec

from kvbench import __version__
from kvbench.clock import WallClock, utc
from kvbench.errors import InputError, InvalidMeasurementError, KvbenchError, TargetError
from kvbench.gates.file import read_gates
from kvbench.gates.gate import Absolute
from kvbench.gates.judge import judge
from kvbench.oracle.ceiling import ceiling
from kvbench.records.evidence import read_evidence
from kvbench.records.lost import write_lost
from kvbench.records.manifest import (
    CacheCounters,
    Ceiling,
    Counts,
    Manifest,
    PodCounters,
    Workload,
    this_machine,
)
from kvbench.records.reader import read_frame, write_parquet
from kvbench.records.run import RunFolder
from kvbench.records.schema import OWN_FAULTS
from kvbench.records.validity import Limits
from kvbench.records.verdict import write_verdict
from kvbench.records.warm import refuse_warm
from kvbench.report.page import build_report
from kvbench.stack.abort import Abort, GateAbortError
from kvbench.stack.decisions import DecisionWatch
from kvbench.stack.loadgen import complaints, free_port, locust_command
from kvbench.stack.own_tokenizer import tokenizer_for
from kvbench.stack.preflight import notes as preflight_notes
from kvbench.stack.preflight import problems, refusal
from kvbench.stack.probe import probe
from kvbench.stack.process import Child
from kvbench.stack.tail import Tail
from kvbench.stack.target import (
    DEFAULT_BLOCK_SIZE,
    Target,
    cache_counters,
    look_at,
    reset_caches,
)
from kvbench.stack.watch import ServerWatch, servers_of
from kvbench.workload.load import fingerprint, load_plan
from kvbench.workload.render import Renderer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from kvbench.gates.gate import Gate
    from kvbench.oracle.ceiling import Ceiling as PlanCeiling
    from kvbench.records.evidence import Evidence
    from kvbench.records.summary import Summary
    from kvbench.records.verdict import Verdict
    from kvbench.text.tokenizer import Tokenizer
    from kvbench.workload.plan import Plan

POLL_SECONDS = 0.25
"""How often the display looks at the rows."""

TOKENS_APART = 0.01
"""Share by which the pods' count of prompt tokens may differ from the plan's unmentioned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What to run, and against what.

    Attributes:
        target: Base URL of a pod or a router.
        workload: Workload file; or else `trace`.
        trace: Trace file.
        limit: Rows of the trace, or turns of the workload, to take; None is all.
        speed: Factor by which a trace is replayed faster than it was recorded.
        seed: Root seed; None takes the workload's.
        model: Model to ask for; None takes the target's first.
        tokenizer: Directory or file of the tokenizer; None finds the target's, or takes our own.
        name: What the run is called; None takes the workload's name.
        arm: What tells it from the runs it is compared with.
        runs: Folder of all runs.
        isolation: How the run keeps itself from what earlier runs left in the caches.
        limits: How much the measurement may be off and still count.
        request_timeout_s: Seconds after which a turn is given up.
        max_in_flight: Most turns open at once.
        command: The command line, for the manifest.
        gates: File of gates to judge it by, beside those of the workload.
        preflight: Whether the target is asked first if it is ready.
        processes: Load workers, each on a core of its own.
        metrics: Address and port where the load generator serves `/metrics`; None: nowhere.
        warm: Whether caches may hold what an earlier run of the same plan left.
    """

    target: str
    workload: Path | None = None
    trace: Path | None = None
    limit: int | None = None
    speed: float = 1.0
    seed: int | None = None
    model: str | None = None
    tokenizer: Path | None = None
    name: str | None = None
    arm: str | None = None
    runs: Path
    isolation: Literal["salt", "reset", "none"] = "salt"
    limits: Limits = field(default_factory=Limits)
    request_timeout_s: float = 600.0
    max_in_flight: int = 4096
    command: tuple[str, ...] = ()
    gates: Path | None = None
    preflight: bool = True
    processes: int = 1
    metrics: tuple[str, int] | None = None
    warm: bool = False


@dataclass(frozen=True, slots=True)
class Prepared:
    """A run that is ready to go: its plan is made, its target has answered."""

    job: Job
    target: Target
    tokenizer: Tokenizer
    plan: Plan
    folder: RunFolder
    manifest: Manifest
    notes: tuple[str, ...]
    gates: tuple[Gate, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """A run that is over.

    Attributes:
        folder: Where it lies.
        manifest: As it was closed.
        summary: Its statistics.
        notes: What a person should know and no number shows.
        report: The page about it.
        verdict: What its gates say; None where it has none.
        unwritten: Why the report or the table of rows could not be written, if so.
    """

    folder: RunFolder
    manifest: Manifest
    summary: Summary
    notes: tuple[str, ...]
    report: Path
    verdict: Verdict | None = None
    unwritten: InputError | None = None

    def problem(self) -> KvbenchError | None:
        """Return what is wrong with the run as an error, or None.

        Its gates speak first; where none of them is about errors, failed turns speak next.
        """
        if self.unwritten is not None:
            return self.unwritten
        if self.verdict is not None:
            about_errors = any(g.gate.startswith(("errors", "goodput")) for g in self.verdict.gates)
            if (problem := self.verdict.problem()) is not None or about_errors:
                return problem
        failed = {k: n for k, n in self.summary.failed.items() if k not in OWN_FAULTS}
        if failed:
            kinds = ", ".join(f"{count} × {kind}" for kind, count in failed.items())
            first = _first_failure(self.folder)
            return TargetError(
                f"{sum(failed.values())} of {self.summary.turns} turns failed: {kinds}{first}",
                hint=f"every turn's row is kept: {self.folder.path}",
            )
        if self.manifest.validity:
            late = any("load generator was" in reason for reason in self.manifest.validity)
            return InvalidMeasurementError(
                "this measurement is not valid: " + "; ".join(self.manifest.validity),
                hint="let the machine do less beside it, lower the load, or raise "
                "--max-lateness if you accept it"
                if late
                else f"what there is: {self.report}",
            )
        return None


class Watch(Protocol):
    """Is shown a run while it is on."""

    def begin(self, prepared: Prepared) -> None:
        """The first turn is about to be sent."""
        ...

    def update(self, tail: Tail) -> None:
        """Some time has passed."""
        ...

    def end(self) -> None:
        """The last row is written, or never will be."""
        ...


def prepare(job: Job) -> Prepared:
    """Look at the target, make the plan and the run folder.

    Raises:
        InputError: The workload, the trace or a flag is wrong.
        TargetError: The target does not answer, or is not ready for it.
    """
    source = job.workload or job.trace
    if source is None:
        raise InputError(
            "nothing to run: give a workload file or --trace",
            hint="kvbench run workloads/chat.yaml --target http://127.0.0.1:8000",
        )
    plan = load_plan(job.workload, job.trace, seed=job.seed, limit=job.limit, speed=job.speed)
    gates = [gate for path in (job.workload, job.gates) if path for gate in read_gates(path)]
    target = look_at(job.target, job.model)
    tokenizer = tokenizer_for(target, job.tokenizer)
    notes = list(plan.notes)
    if target.block_size is None:
        notes.append(
            f"the pods do not say their block size: the ceiling assumes {DEFAULT_BLOCK_SIZE}"
        )
    block_size = target.block_size or DEFAULT_BLOCK_SIZE
    top = ceiling(plan, Renderer(plan, tokenizer), block_size)
    if job.preflight:
        notes = [*_preflight(job, plan, target, tokenizer, top.prompt_tokens), *notes]
    manifest = _manifest(job, plan, target, tokenizer, top)
    refuse_warm(job.runs, manifest)
    folder = RunFolder.create(job.runs, job.name or plan.name, utc())
    manifest = msgspec.structs.replace(
        manifest,
        gates=[gate.text for gate in gates],
        max_lateness_s=job.limits.lateness_p99_s,
    )
    folder.write_manifest(manifest)
    return Prepared(job, target, tokenizer, plan, folder, manifest, tuple(notes), tuple(gates))


def run(job: Job, watch: Watch, check: Callable[[], None] = lambda: None) -> Outcome:
    """Run a job from beginning to end.

    Args:
        job: What to run.
        watch: Is shown how it goes.
        check: Called now and then; raises if a part of the stack has broken.

    Raises:
        InputError: The workload, the trace or a flag is wrong.
        TargetError: The target does not answer.
        KeyboardInterrupt: It was interrupted, and closed properly.
    """
    prepared = prepare(job)
    before: dict[str, dict[str, float]] = {}
    state: Literal["finished", "interrupted", "failed"] = "failed"
    interrupted: BaseException | None = None
    aborted: str | None = None
    decisions: DecisionWatch | None = None
    try:
        watch.begin(prepared)
        if job.isolation == "reset":
            reset_caches(prepared.target)
        before = cache_counters(prepared.target.pods)
        folder, target = prepared.folder, prepared.target
        router = target.url if target.routed else None
        decisions = DecisionWatch(router, folder.decisions_path, folder.id)
        with ServerWatch(servers_of(target), folder.server_path), decisions:
            _drive(prepared, watch, check)
        state = "finished"
    except GateAbortError as stop:
        state, aborted = "interrupted", stop.gate.text
    except (KeyboardInterrupt, KvbenchError) as error:
        state = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        interrupted = error
    finally:
        watch.end()
    said = () if decisions is None else decisions.notes()
    outcome = close(prepared, state, before, aborted, said)
    if interrupted is not None:
        raise interrupted
    return outcome


def _drive(prepared: Prepared, watch: Watch, check: Callable[[], None]) -> None:
    """Let Locust send the plan.

    Raises:
        KvbenchError: It ended before the last row was written; the class says whose fault it is.
    """
    job, folder = prepared.job, prepared.folder
    command = locust_command(
        host=prepared.target.url,
        run_dir=folder.path,
        workload=job.workload,
        trace=job.trace,
        limit=job.limit,
        speed=job.speed,
        seed=prepared.plan.seed,
        model=prepared.target.model,
        tokenizer=prepared.tokenizer.path,
        isolation="none" if job.isolation == "reset" else job.isolation,
        block_size=prepared.manifest.block_size or DEFAULT_BLOCK_SIZE,
        request_timeout_s=job.request_timeout_s,
        max_in_flight=job.max_in_flight,
        processes=job.processes,
        master_port=free_port() if job.processes > 1 else 0,
        metrics_host=job.metrics[0] if job.metrics else None,
        metrics_port=job.metrics[1] if job.metrics else None,
    )
    tail, abort = Tail(folder), Abort(prepared.gates, folder, WallClock())
    # Tokenizers warns on standard error when Locust forks after it was used in parallel.
    env = {"KVBENCH_EXIT_WITH_PARENT": "1", "TOKENIZERS_PARALLELISM": "false"}
    with Child("load generator", command, folder.path / "locust.log", env) as child:
        try:
            while child.wait(POLL_SECONDS) is None:
                check()
                tail.read()
                watch.update(tail)
                abort.check()
        except BaseException:
            child.ask_to_stop(signal.SIGINT)
            child.wait(10)
            raise
        tail.read()
        watch.update(tail)
        if code := child.poll():
            blame = {1: KvbenchError, 2: InputError, 3: TargetError}
            said = complaints(child.log.read_text(errors="replace"))
            raise blame.get(code, InvalidMeasurementError)(
                f"the load generator ended with {code} after {tail.rows} of "
                f"{len(prepared.plan.turns)} turns"
                + ("".join(f"\n    {one}" for one in said) or child.tail()),
                hint=f"every row so far is kept: {folder.path}; its log: {child.log}",
            )


def close(
    prepared: Prepared,
    state: Literal["finished", "interrupted", "failed"],
    before: dict[str, dict[str, float]],
    aborted: str | None = None,
    said: Sequence[str] = (),
) -> Outcome:
    """Count, keep, summarise, judge and report what there is; note what else was `said`."""
    folder, target = prepared.folder, prepared.target
    after = cache_counters(target.pods)
    manifest = msgspec.structs.replace(
        folder.read_manifest(),
        state=state,
        ended_at=utc().isoformat(),
        load=folder.read_testimonies(),
        pods={
            name: PodCounters(before=_counters(before.get(name)), after=_counters(after.get(name)))
            for name in target.pods
        },
        aborted=aborted,
    )
    folder.write_manifest(manifest)
    unwritten = None if state == "finished" else _refusal(lambda: _write_lost(prepared))
    unwritten = _refusal(lambda: write_parquet(folder)) or unwritten
    evidence = read_evidence(folder, prepared.job.limits)
    summary = evidence.summary
    manifest = msgspec.structs.replace(
        manifest,
        counts=Counts(
            planned=manifest.planned_turns,
            rows=summary.turns,
            ok=summary.turns - summary.failures,
            failed=summary.failed,
        ),
        validity=list(evidence.reasons),
    )
    folder.write_manifest(manifest)
    notes = [*prepared.notes, *said, *_afterthoughts(summary, manifest)]
    verdict = _verdict(evidence, prepared.gates)
    report, limits = folder.path / "report.html", prepared.job.limits
    unwritten = _refusal(lambda: build_report([folder.path], report, limits)) or unwritten
    return Outcome(folder, manifest, summary, tuple(notes), report, verdict, unwritten)


def _write_lost(prepared: Prepared) -> None:
    """Give each planned turn without a row one that says so: its load worker is gone."""
    for worker in range(prepared.job.processes):
        write_lost(prepared.folder, prepared.plan, worker, prepared.job.processes)


def _refusal(write: Callable[[], object]) -> InputError | None:
    """Write what can be made again from the rows; return why it could not be, if so."""
    try:
        write()
    except InputError as error:
        return InputError(error.message, hint="every row is kept; make room, then `kvbench report`")
    return None


def _verdict(evidence: Evidence, gates: tuple[Gate, ...]) -> Verdict | None:
    """Judge by the gates that need no baseline, and keep what they say."""
    absolute = [gate for gate in gates if isinstance(gate.bound, Absolute)]
    if not absolute:
        return None
    verdict = judge(evidence, absolute)
    write_verdict(evidence.folder, verdict)
    return verdict


def _counters(found: dict[str, float] | None) -> CacheCounters | None:
    if found is None:
        return None
    return CacheCounters(queries=int(found["queries"]), hits=int(found["hits"]))


def _afterthoughts(summary: Summary, manifest: Manifest) -> list[str]:
    """Return what the numbers of an ended run suggest."""
    notes = []
    if manifest.warm:
        notes.append("the caches may have been warm (--warm): the ceiling is that of a cold start")
    if summary.hits.turns == 0 and summary.turns > summary.failures:
        notes.append(
            "the pods do not report cached tokens: start vLLM with --enable-prompt-tokens-details"
        )
    planned, told = summary.hits.planned_prompt_tokens, summary.hits.bounded_prompt_tokens
    if abs(told - planned) > TOKENS_APART * planned:
        notes.append(
            f"the pods counted {told:,} prompt tokens where {planned:,} were planned "
            f"({told / planned - 1:+.0%}): another tokenizer or chat template, so the ceiling is "
            "that of other prompts; --tokenizer takes the model's own"
        )
    counted = [
        pod.after.hits - pod.before.hits
        for pod in manifest.pods.values()
        if pod.before is not None and pod.after is not None
    ]
    if len(counted) == len(manifest.pods) and not summary.hits.unknown:
        difference = sum(counted) - summary.hits.cached_tokens
        if difference and not summary.failures:
            notes.append(
                f"the pods counted {abs(difference)} cached tokens "
                f"{'more' if difference > 0 else 'fewer'} than the rows hold: other traffic, "
                "a restart, or a reset in between"
            )
    return notes


def _preflight(
    job: Job, plan: Plan, target: Target, tokenizer: Tokenizer, prompt_tokens: Sequence[int]
) -> list[str]:
    """Return what the target's answers to a few small requests suggest.

    Raises:
        InputError: The plan does not fit the target.
        TargetError: The target is not ready.
    """
    name = f"kvbench-preflight-{utc().isoformat()}"
    seen = probe(target, tokenizer, plan.api, name=name, salted=job.isolation == "salt")
    pairs = zip(plan.turns, prompt_tokens, strict=True)
    found = problems(seen, [tokens + turn.max_tokens for turn, tokens in pairs])
    if (error := refusal(found)) is not None:
        raise error
    return preflight_notes(seen)


def _manifest(
    job: Job, plan: Plan, target: Target, tokenizer: Tokenizer, top: PlanCeiling
) -> Manifest:
    """Return the manifest of a run that is about to begin."""
    source = job.workload or job.trace
    assert source is not None
    ids = ceiling(plan, None, plan.ids_block_size) if plan.ids_block_size else None
    return Manifest(
        kvbench_version=__version__,
        created=utc().isoformat(),
        command=list(job.command),
        name=job.name or plan.name,
        arm=job.arm,
        target=target.url,
        model=target.model,
        tokenizer=str(tokenizer.path),
        workload=Workload(
            file=str(job.workload) if job.workload else None,
            trace=str(job.trace) if job.trace else None,
            sha256=fingerprint(source),
            speed=job.speed if job.trace else None,
            limit=job.limit,
        ),
        seed=plan.seed,
        api=plan.api,
        history=plan.history,
        isolation=job.isolation,
        block_size=top.block_size,
        planned_turns=len(plan.turns),
        planned_sessions=plan.sessions,
        ceiling=Ceiling(tokens=sum(top.cached_tokens), prompt_tokens=sum(top.prompt_tokens)),
        ids_ceiling=Ceiling(tokens=sum(ids.cached_tokens), prompt_tokens=sum(ids.prompt_tokens))
        if ids
        else None,
        machine=this_machine(),
        warm=job.warm,
    )


def _first_failure(folder: RunFolder) -> str:
    frame, _ = read_frame(folder)
    failed = frame[frame["error"].notna() & ~frame["error"].isin(OWN_FAULTS)]
    if failed.empty:
        return ""
    first = failed.iloc[0]
    return f" (the first: turn {first['index']}, {first['error_message']})"
