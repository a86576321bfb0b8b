"""From a workload and a seed to the plan: who begins when, and what became of what was left out.

Turns are numbered in the order in which an idle server would see them (`kvbench.workload.drafts`);
the turns of one session are drafted by `kvbench.workload.sessions`.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from kvbench import seeds
from kvbench.workload.arrivals import arrivals
from kvbench.workload.drafts import Draft, assemble
from kvbench.workload.sessions import Begin, draft_session
from kvbench.workload.spec import UsersArrival, Workload

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kvbench.workload.plan import Plan

MOST_SESSIONS = 1_000_000


def build_plan(workload: Workload, seed: int, notes: Iterable[str] = ()) -> Plan:
    """Return the plan of `workload` under `seed`: the same arguments, the same plan.

    Args:
        workload: The workload; what it leaves out has been solved for.
        seed: Root seed.
        notes: What people should know of the plan.

    Raises:
        InputError: It would have too many turns.
    """
    return assemble(
        _drafts(workload, seed),
        name=workload.name,
        seed=seed,
        api=workload.api,
        history=workload.history,
        notes=notes,
    )


def _drafts(workload: Workload, seed: int) -> Iterator[Draft]:
    """Yield the drafts of all sessions, one session after the other."""
    most = workload.sessions.count or MOST_SESSIONS
    starts = list(islice(arrivals(workload.arrival, seeds.rng(seed, "arrival")), most))
    users = workload.arrival if isinstance(workload.arrival, UsersArrival) else None
    count = most if users else len(starts)
    width = len(str(count - 1))
    ends: list[int] = []  # position of the last turn of each session
    position = 0
    for number in range(count):
        begin = Begin(starts[number]) if number < len(starts) else None
        if begin is None:
            assert users is not None
            pause = users.pause.draw(seeds.rng(seed, "pause", number))
            begin = Begin(None, pause, (ends[number - users.count],))
        name = f"s{number:0{width}d}"
        drafts = draft_session(workload, seed, number, name=name, first=position, begin=begin)
        yield from drafts
        if users:
            own = [i for i, draft in enumerate(drafts) if draft.session == name]
            ends.append(position + own[-1])
        position += len(drafts)
