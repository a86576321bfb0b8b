"""Two arms, measured in turns: A B, B A, A B, … so that a drifting machine harms both alike.

An arm is a policy or a target. Policies are compared on pods of this machine (one stack, its caches
emptied and its router replaced before every run) or in virtual time; targets as they are, kept
apart from earlier runs by a salt. Round i has seed `seed` + i in both arms.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from kvbench.errors import InputError
from kvbench.gates.compare import ArmRun, Round
from kvbench.policies.names import NAMES
from kvbench.records.evidence import read_evidence
from kvbench.records.run import RunFolder
from kvbench.records.validity import Limits
from kvbench.stack.local import LocalStack
from kvbench.stack.process import logs_folder
from kvbench.stack.run import Job, Watch, run
from kvbench.stack.topology import PodSpec, RouterSpec, Topology
from kvbench.stack.virtual import VirtualPods, run_virtual

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from kvbench.gates.gate import Gate


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What is measured again and again.

    Attributes:
        arms: Policies, or URLs of targets.
        workload: Workload file.
        rounds: Runs of each arm.
        virtual: Whether policies are compared in virtual time.
        seed: Of the first round.
        runs: Folder of all runs.
        pods: Of this machine, or virtual: how many.
        num_gpu_blocks: Blocks of each pod.
        limits: How much a measurement may be off and still count.
        command: The command line, for manifests.
    """

    arms: tuple[str, ...]
    workload: Path
    rounds: int = 4
    virtual: bool = False
    seed: int = 0
    runs: Path = Path("runs")
    pods: int = 3
    num_gpu_blocks: int = 2048
    limits: Limits = field(default_factory=Limits)
    command: tuple[str, ...] = ()


class Measure(Protocol):
    """Makes one run of an arm."""

    def __call__(self, arm: str, seed: int, workload: Path) -> RunFolder:
        """Return the folder of a run of `workload` under `seed`."""
        ...


def is_target(arm: str) -> bool:
    """Whether an arm is the URL of a target."""
    return arm.startswith(("http://", "https://"))


def check_arms(arms: Sequence[str]) -> None:
    """Refuse what is neither a policy nor a target, and a mixture of both.

    Raises:
        InputError: It is so.
    """
    for arm in arms:
        if not is_target(arm) and arm not in NAMES:
            raise InputError(
                f"expected a URL, a run folder or one of {', '.join(NAMES)}, got {arm!r}",
                hint="kvbench compare round_robin prefix_cost --workload workloads/chat.yaml",
            )
    if len({is_target(arm) for arm in arms}) > 1:
        raise InputError("expected two policies or two URLs, got one of each")


@contextmanager
def measuring(trial: Trial, watch: Watch) -> Iterator[Measure]:
    """Yield what makes runs of a trial's arms; what it started ends with the block.

    Raises:
        KvbenchError: An arm is wrong, or a part does not start.
    """
    check_arms(trial.arms)
    if trial.virtual:
        if is_target(trial.arms[0]):
            raise InputError("--virtual: expected policies, got URLs")
        pods = VirtualPods(count=trial.pods, num_gpu_blocks=trial.num_gpu_blocks)
        yield lambda arm, seed, workload: run_virtual(
            workload, arm, pods=pods, runs=trial.runs, seed=seed, command=trial.command
        )
    elif is_target(trial.arms[0]):
        yield lambda arm, seed, workload: run(_job(trial, arm, seed, workload), watch).folder
    else:
        with _local(trial) as stack:

            def measure(arm: str, seed: int, workload: Path) -> RunFolder:
                stack.start_router(RouterSpec(arm))
                job = replace(_job(trial, arm, seed, workload), target=stack.url, isolation="reset")
                return run(job, watch, stack.check).folder

            yield measure


@contextmanager
def _local(trial: Trial) -> Iterator[LocalStack]:
    pod = PodSpec(num_gpu_blocks=trial.num_gpu_blocks)
    topology = Topology(pods=(pod,) * trial.pods, router=RouterSpec(trial.arms[0]))
    with logs_folder("compare") as logs, LocalStack(topology, logs) as stack:
        yield stack


def _job(trial: Trial, arm: str, seed: int, workload: Path) -> Job:
    return Job(
        target=arm,
        workload=workload,
        seed=seed,
        name=f"{workload.stem}-{arm.removeprefix('http://')}",
        arm=arm,
        runs=trial.runs,
        limits=trial.limits,
        command=trial.command,
    )


def rounds_of(
    trial: Trial, measure: Measure, gates: Sequence[Gate], told: Callable[[int, ArmRun], None]
) -> list[Round]:
    """Measure the rounds of a trial of two arms; `told` hears of every run as it ends.

    Raises:
        KvbenchError: A run cannot be made.
    """
    rounds = []
    for number in range(trial.rounds):
        order = (0, 1) if number % 2 == 0 else (1, 0)
        found: dict[int, ArmRun] = {}
        for side in order:
            folder = measure(trial.arms[side], trial.seed + number, trial.workload)
            found[side] = ArmRun.of(read_evidence(folder, trial.limits), gates)
            told(number, found[side])
        rounds.append((found[0], found[1]))
    return rounds


def rounds_from(a: Path, b: Path, gates: Sequence[Gate], limits: Limits) -> list[Round]:
    """Return the rounds of runs that exist: of two runs, or of two folders of as many runs each.

    Raises:
        InputError: They cannot be read, or are not as many.
    """
    sides = [_runs_in(path) for path in (a, b)]
    if len(sides[0]) != len(sides[1]):
        raise InputError(
            f"expected as many runs on either side, got {len(sides[0])} and {len(sides[1])}",
            hint="runs are paired in order of their names",
        )
    pairs = zip(*sides, strict=True)
    return [
        (
            ArmRun.of(read_evidence(left, limits), gates),
            ArmRun.of(read_evidence(right, limits), gates),
        )
        for left, right in pairs
    ]


def _runs_in(path: Path) -> list[RunFolder]:
    if (path / "manifest.json").exists() or not path.is_dir():
        return [RunFolder.open(path)]
    found = sorted(inner.parent for inner in path.glob("*/manifest.json"))
    if not found:
        raise InputError("expected a run folder, or a folder of runs", where=str(path))
    return [RunFolder.open(inner) for inner in found]
