"""The turns of one session, and of the sub-agents that branch off it.

A session draws from a generator of its own (and one more for each thing that is optional: tools,
sub-agents, reasoning), so a change to one session, or more sessions, leaves the others as they
were, and tool calls added to a workload leave its questions as they were.

Keys of texts: `prefix/<path in the tree>`, and `user/`, `tool/` or `answer/<conversation>/<n>`,
with the number of the request in its conversation. A sub-agent is a conversation of its own:
`7.a1` is the first one of session 7. An answer's text may be preceded by `reasoning/answer/…`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvbench import seeds
from kvbench.workload.context import condensed, fit, outgrown, tokens_of
from kvbench.workload.distributions import draw_whole
from kvbench.workload.drafts import Draft
from kvbench.workload.plan import Message, Segment, reasoning_key
from kvbench.workload.strategies import Summary
from kvbench.workload.tree import descend

if TYPE_CHECKING:
    from random import Random

    from kvbench.workload.spec import Subagents, Workload

_INSTRUCTION = Segment("instruction/summary", 32)
"""What a client says to have a conversation summed up."""


@dataclass(frozen=True, slots=True)
class Begin:
    """When the first turn of a session is due: `at`, or `think` after the turns `after`."""

    at: float | None = None
    think: float = 0.0
    after: tuple[int, ...] = ()


@dataclass(slots=True)
class _Conversation:
    """A conversation while it is drafted.

    Attributes:
        workload: What it is drawn from.
        name: Of the session.
        key: Of the conversation, in the keys of its texts.
        group: Prefix group.
        messages: What was said so far.
        drafts: Of the whole family, in order.
        first: Position of the first of them among all drafts of the plan.
        begin: When its first turn is due.
        asked: Requests so far.
        dropped: Tokens that a summary has replaced, less its own.
        children: Sub-agents so far.
    """

    workload: Workload
    name: str
    key: str
    group: str
    messages: tuple[Message, ...]
    drafts: list[Draft]
    first: int
    begin: Begin
    asked: int = 0
    dropped: int = 0
    children: int = 0

    def ask(
        self,
        question: tuple[Segment, ...],
        answer: int,
        *,
        reasoning: int = 0,
        think: float = 0.0,
        after: tuple[int, ...] = (),
    ) -> int:
        """Draft a request, and note its answer; return its position among all drafts."""
        context = self.workload.context
        outgrows = outgrown(context, self._with(question), answer + reasoning)
        if isinstance(context, Summary) and outgrows and self.messages[1:]:
            self._sum_up(context, think, after)
            think, after = 0.0, ()
        self.messages = self._with(question)
        prompt = fit(context, self.messages, answer + reasoning)
        return self._draft(prompt, answer, reasoning, think, after)

    def _with(self, question: tuple[Segment, ...]) -> tuple[Message, ...]:
        """Return what was said and a question; two things that a user says are one message."""
        if not question:
            return self.messages
        if self.messages and self.messages[-1].role == "user":
            *said, last = self.messages
            return (*said, Message("user", last.segments + question))
        return (*self.messages, Message("user", question))

    def _draft(
        self,
        prompt: tuple[Message, ...],
        answer: int,
        reasoning: int,
        think: float,
        after: tuple[int, ...],
    ) -> int:
        """Add a draft, and its answer to what was said."""
        begin = self.begin if not self.asked else Begin(None, think, after)
        self.asked += 1
        key = f"answer/{self.key}/{self.asked}"
        fits = prompt is self.messages and not self.dropped
        self.drafts.append(
            Draft(
                session=self.name,
                messages=prompt,
                max_tokens=answer + reasoning,
                answer_key=key,
                group=self.group,
                at=begin.at,
                think=begin.think,
                after=begin.after,
                reasoning_tokens=reasoning,
                conversation_tokens=0 if fits else tokens_of(self.messages) + self.dropped,
            )
        )
        said = [Segment(key, answer)]
        if reasoning and self.workload.sessions.reasoning == "echo":
            said.insert(0, Segment(reasoning_key(key), reasoning))
        self.messages = (*self.messages, Message("assistant", tuple(said)))
        return self.first + len(self.drafts) - 1

    def _sum_up(self, context: Summary, think: float, after: tuple[int, ...]) -> None:
        """Ask for a summary of what was said, and let it stand for it."""
        said = self.messages
        self.messages = self._with((_INSTRUCTION,))
        self._draft(self.messages, context.tokens, 0, think, after)
        summary = self.messages[-1].segments[-1]
        before = tokens_of(said) + self.dropped
        self.messages = condensed(context, said, summary)
        self.dropped = before - tokens_of(self.messages)


def draft_session(
    workload: Workload, seed: int, number: int, *, name: str, first: int, begin: Begin
) -> list[Draft]:
    """Return the drafts of a session and its sub-agents, each behind what it waits for.

    Args:
        workload: The workload; every number of it is known.
        seed: Root seed.
        number: Of the session, from 0.
        name: What it is called in the plan.
        first: How many drafts the plan has before.
        begin: When its first turn is due.
    """
    rng = seeds.rng(seed, "session", number)
    group, prefix = descend(workload.prefixes, seed, number, rng)
    system = (Message("system", prefix),) if prefix else ()
    talk = _Conversation(workload, name, str(number), group, system, [], first, begin)
    spec = workload.sessions
    more = _Chance(seed, number)
    turns = draw_whole(spec.turns, rng)
    after: tuple[int, ...] = ()
    results: tuple[Segment, ...] = ()
    for turn in range(1, turns + 1):
        think = spec.think.draw(rng) if turn > 1 else 0.0
        user, answer = draw_whole(spec.user_tokens, rng), draw_whole(spec.answer_tokens, rng)
        question = _text("user", talk, user) if user else ()
        _turn(talk, results + question, answer, think=think, after=after, more=more)
        after, results = (), ()
        if spec.subagents and turn < turns and more.agents.random() < spec.subagents.chance:
            after, results = _branch(talk, spec.subagents, system, more.agents)
    return talk.drafts


@dataclass(frozen=True, slots=True)
class _Chance:
    """Generators of a session for what is optional: each its own, so one leaves the others be."""

    seed: int
    number: int
    tools: Random = field(init=False)
    agents: Random = field(init=False)
    thoughts: Random = field(init=False)

    def __post_init__(self) -> None:
        for name in ("tools", "agents", "thoughts"):
            object.__setattr__(self, name, seeds.rng(self.seed, name, self.number))


def _text(kind: str, talk: _Conversation, tokens: int) -> tuple[Segment, ...]:
    """Return the text that the next request of a conversation brings."""
    return (Segment(f"{kind}/{talk.key}/{talk.asked + 1}", tokens),)


def _turn(
    talk: _Conversation,
    question: tuple[Segment, ...],
    answer: int,
    *,
    think: float,
    after: tuple[int, ...],
    more: _Chance,
) -> None:
    """Draft a question, the tool calls that it leads to, and the answer."""
    spec = talk.workload.sessions
    tools = spec.tools
    calls = draw_whole(tools.calls, more.tools) if tools else 0
    for call in range(calls + 1):
        generated = answer
        if tools and call < calls and tools.answer_tokens:
            generated = draw_whole(tools.answer_tokens, more.tools)
        reasoning = draw_whole(spec.reasoning_tokens, more.thoughts)
        talk.ask(question, generated, reasoning=reasoning, think=think, after=after)
        if tools and call < calls:
            question = _text("tool", talk, draw_whole(tools.tokens, more.tools))
            think, after = tools.gap.draw(more.tools), ()


def _branch(
    parent: _Conversation, spec: Subagents, system: tuple[Message, ...], rng: Random
) -> tuple[tuple[int, ...], tuple[Segment, ...]]:
    """Draft sub-agents; return what the parent waits for, and what it gets from them."""
    begun = parent.first + len(parent.drafts) - 1
    after, results = [], []
    for _ in range(draw_whole(spec.count, rng)):
        parent.children += 1
        own = f"a{parent.children}"
        child = _Conversation(
            parent.workload,
            f"{parent.name}.{own}",
            f"{parent.key}.{own}",
            parent.group,
            parent.messages if spec.context == "fork" else system,
            parent.drafts,
            parent.first,
            Begin(None, 0.0, (begun,)),
            dropped=parent.dropped if spec.context == "fork" else 0,
        )
        for turn in range(draw_whole(spec.turns, rng)):
            think = spec.think.draw(rng) if turn else 0.0
            user, answer = draw_whole(spec.user_tokens, rng), draw_whole(spec.answer_tokens, rng)
            last = child.ask(_text("user", child, user), answer, think=think)
        after.append(last)
        results.append(Segment(f"answer/{child.key}/{child.asked}", answer))
    return (tuple(after), tuple(results)) if spec.join else ((), ())
