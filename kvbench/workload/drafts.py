"""From drafts to a plan: turns in the order in which an idle server would see them, numbered.

A *draft* is a turn that knows its predecessors and not yet its number. Whoever makes a plan, from a
workload or from a trace, makes drafts and calls `assemble`. A draft stands behind all that it waits
for: the previous draft of its session, and those in `after`.

The order of a plan is that of due times if every answer took no time; ties keep the drafts' order.
That is the order in which the ceiling is computed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from kvbench.errors import InputError
from kvbench.workload.plan import Api, Message, Plan, PlannedTurn

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MOST_TURNS = 2_000_000
"""Of one plan: what fits into the memory of one process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A turn before it has its number. What is not said here is as in `PlannedTurn`.

    Attributes:
        session: The conversation.
        messages: The whole prompt.
        max_tokens: Tokens to generate.
        answer_key: Key of the answer.
        group: Prefix group.
        at: When it is due; None: after its predecessors.
        think: Seconds after the last of them.
        after: Positions, among the drafts, of turns of other sessions that it waits for.
        reasoning_tokens: How many of `max_tokens` are reasoning.
        conversation_tokens: Tokens of the whole conversation, if some were left out.
    """

    session: str
    messages: tuple[Message, ...]
    max_tokens: int
    answer_key: str
    group: str
    at: float | None = None
    think: float = 0.0
    after: tuple[int, ...] = ()
    reasoning_tokens: int = 0
    conversation_tokens: int = 0


def assemble(
    drafts: Iterable[Draft],
    *,
    name: str,
    seed: int,
    api: Api,
    history: Literal["planned", "answers"] = "planned",
    ids_block_size: int | None = None,
    notes: Iterable[str] = (),
) -> Plan:
    """Return the plan of some drafts.

    Raises:
        InputError: There are more than `MOST_TURNS`.
    """
    kept: list[Draft] = []
    for draft in drafts:
        kept.append(draft)
        if len(kept) > MOST_TURNS:
            raise InputError(
                f"expected at most {MOST_TURNS:,} turns, got more",
                where=name,
                hint="use fewer sessions or turns, or --limit; or run several workloads",
            )
    order = _order(kept)
    index_of = {position: index for index, position in enumerate(order)}
    numbers: Counter[str] = Counter()
    turns = []
    for index, position in enumerate(order):
        draft = kept[position]
        numbers[draft.session] += 1
        turns.append(
            PlannedTurn(
                index=index,
                session=draft.session,
                turn=numbers[draft.session],
                group=draft.group,
                at=draft.at,
                think=0.0 if draft.at is not None else draft.think,
                messages=draft.messages,
                max_tokens=draft.max_tokens,
                answer_key=draft.answer_key,
                after=tuple(index_of[before] for before in draft.after),
                reasoning_tokens=draft.reasoning_tokens,
                conversation_tokens=draft.conversation_tokens,
            )
        )
    return Plan(name, seed, api, history, tuple(turns), ids_block_size, tuple(notes))


def _order(drafts: Sequence[Draft]) -> list[int]:
    """Return the positions of the drafts in the order of their due times on an idle server."""
    whens: list[float] = []
    last: dict[str, int] = {}
    for position, draft in enumerate(drafts):
        if draft.at is None:
            before = [*draft.after, *([last[draft.session]] if draft.session in last else [])]
            whens.append(max((whens[i] for i in before), default=0.0) + draft.think)
        else:
            whens.append(draft.at)
        last[draft.session] = position
    return sorted(range(len(drafts)), key=whens.__getitem__)
