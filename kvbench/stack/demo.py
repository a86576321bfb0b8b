"""The demo: one plan, several policies, the same pods emptied between."""

from __future__ import annotations

import sysconfig
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from kvbench.records.validity import Limits
from kvbench.report.page import build_report
from kvbench.stack.local import LocalStack
from kvbench.stack.process import logs_folder
from kvbench.stack.run import Job, Outcome, Watch, run
from kvbench.stack.topology import PodSpec, RouterSpec, Topology

if TYPE_CHECKING:
    from collections.abc import Sequence

POD = PodSpec(num_gpu_blocks=2048)
"""A pod whose cache holds a part of the demo's prefixes, and three of which hold them all."""


LIMITS = Limits(lateness_p99_s=0.25)
"""A demo shares its machine with its own pods, and what it shows is no matter of 0.1 s."""


def demo_workload() -> Path:
    """Return the demo's workload file: the checkout's, or the one that came with the package."""
    checkout = Path(__file__).parents[2] / "workloads"
    installed = Path(sysconfig.get_path("data")) / "share" / "kvbench" / "workloads"
    path = (checkout if checkout.is_dir() else installed) / "demo.yaml"
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def demo(
    *,
    workload: Path | None,
    policies: Sequence[str],
    runs: Path,
    seed: int | None,
    command: tuple[str, ...],
    watch: Watch,
) -> tuple[list[Outcome], Path]:
    """Run the plan once for each policy; return the outcomes and the report that compares them.

    Raises:
        KvbenchError: A part did not start, or broke.
        KeyboardInterrupt: It was interrupted; everything is stopped.
    """
    topology = Topology(pods=(POD,) * 3, router=RouterSpec(policy=policies[0]))
    outcomes: list[Outcome] = []
    try:
        with logs_folder("demo") as logs, LocalStack(topology, logs) as stack:
            for policy in policies:
                if outcomes:
                    stack.start_router(replace(topology.router, policy=policy))
                job = Job(
                    target=stack.url,
                    workload=workload or demo_workload(),
                    seed=seed,
                    name=f"demo-{policy}",
                    arm=policy,
                    runs=runs,
                    isolation="reset",
                    limits=LIMITS,
                    command=command,
                )
                outcomes.append(run(job, watch, stack.check))
    finally:  # what was measured before an interruption is shown all the same
        _show(outcomes)
    return outcomes, _page(outcomes)


def _show(outcomes: Sequence[Outcome]) -> None:
    if outcomes:
        build_report([outcome.folder.path for outcome in outcomes], _page(outcomes), LIMITS)


def _page(outcomes: Sequence[Outcome]) -> Path:
    return outcomes[-1].folder.path / "report.html"
