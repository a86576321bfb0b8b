"""The plan: every turn that a run will send, in which order, when, and out of which text.

A plan is pure data, computed from a workload and a seed before anything is sent. Prompts are not
text yet: they are *segments*, each a key and a number of tokens. Equal keys mean equal tokens, on
every machine, so what two prompts share can be read from the plan without any tokenizer, and a
plan of a million turns stays small. `kvbench.text` turns segments into words when they are sent.

When a turn is due:

- `at` is set: at that many seconds after the run's start, whatever became of the turns before it
  (the first turn of a session; each row of a trace with time stamps);
- `at` is None: `think` seconds after the last of its predecessors has ended, or failed. These are
  the previous turn of its session, if there is one, and every turn named in `after`.

So sessions arrive open-loop, and inside a session a client waits for its answer before it asks
again. `after` says the rest: a sub-agent forks off (its first turn comes after a turn of its
parent) and joins (a turn of the parent comes after the last turns of its sub-agents), and with a
fixed number of users a session begins after the one before it. A turn that fails does not end its
session: every planned turn becomes exactly one record. Predecessors stand before their followers.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

Role = Literal["system", "user", "assistant"]
Api = Literal["chat", "completions"]


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of tokens with an identity.

    Attributes:
        key: What the tokens are. Equal keys give equal tokens; where one of two segments with
            equal keys is shorter, it is the beginning of the longer one.
        tokens: How many, at least 1.
    """

    key: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a chat: a role, and the segments its content is made of, in order."""

    role: Role
    segments: tuple[Segment, ...]

    @property
    def tokens(self) -> int:
        """Tokens of the content, without what the chat template puts around it."""
        return sum(segment.tokens for segment in self.segments)


@dataclass(frozen=True, slots=True)
class PlannedTurn:
    """One request that will be sent.

    Attributes:
        index: Position in the plan, from 0; the record of the turn carries the same number.
        session: The conversation it belongs to.
        turn: Which turn of its session, from 1.
        group: The prefix group: sessions with the same group share a beginning.
        at: Seconds after the run's start at which it is due; None: `think` after its predecessor.
        think: Seconds between the end of the last predecessor and this turn; 0 where `at` is set.
        messages: The whole prompt. For `completions` the segments of all messages, joined.
        max_tokens: Tokens to generate; the request ignores end-of-text, so exactly this many.
        answer_key: The key of the segment that stands for this turn's answer in later prompts.
        after: Indices of turns of other sessions that must have ended, too; all smaller than
            `index`.
        reasoning_tokens: How many of `max_tokens` are expected to be reasoning; they come first,
            and their key is `reasoning_key`.
        conversation_tokens: Content tokens that the prompt would have if nothing of the
            conversation had been dropped to make it fit; 0: nothing was.
    """

    index: int
    session: str
    turn: int
    group: str
    at: float | None
    think: float
    messages: tuple[Message, ...]
    max_tokens: int
    answer_key: str
    after: tuple[int, ...] = ()
    reasoning_tokens: int = 0
    conversation_tokens: int = 0

    @property
    def content_tokens(self) -> int:
        """Prompt tokens without the chat template's."""
        return sum(message.tokens for message in self.messages)

    @property
    def dropped_tokens(self) -> int:
        """Tokens of the conversation that the client left out to make the prompt fit."""
        if not self.conversation_tokens:
            return 0
        return max(self.conversation_tokens - self.content_tokens, 0)

    @property
    def reasoning_key(self) -> str:
        """The key of the segment that stands for this turn's reasoning in later prompts."""
        return reasoning_key(self.answer_key)


@dataclass(frozen=True, slots=True)
class Plan:
    """All turns of a run, ordered by index.

    Attributes:
        name: Of the workload or the trace.
        seed: The root seed. Same workload and seed, same plan, byte for byte.
        api: Which endpoint it is sent to.
        history: Whether later turns of a session repeat the model's real answers ("answers") or
            the planned text of the same length ("planned").
        turns: In order of index.
        ids_block_size: For a trace with block ids, the tokens per id; else None.
        notes: What people should know of how the plan came about: what was solved for, what was
            guessed.
    """

    name: str
    seed: int
    api: Api
    history: Literal["planned", "answers"]
    turns: tuple[PlannedTurn, ...]
    ids_block_size: int | None = None
    notes: tuple[str, ...] = ()
    sessions: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sessions", len({turn.session for turn in self.turns}))

    @property
    def shortest_s(self) -> float:
        """Seconds until the last turn is due, if answers took no time: arrivals and pauses."""
        due: dict[int, float] = {}
        latest: dict[str, float] = {}
        for turn in self.turns:
            before = [latest.get(turn.session, 0.0), *(due.get(i, 0.0) for i in turn.after)]
            moment = max(before) + turn.think if turn.at is None else turn.at
            due[turn.index] = latest[turn.session] = moment
        return max(due.values(), default=0.0)

    def part(self, worker: int, workers: int) -> Plan:
        """Return the turns of worker `worker` (from 0) of `workers`: whole families, no overlap.

        A family are the sessions that wait for each other. The union of all parts is the plan, and
        no worker needs to ask another which part is its.
        """
        families = _families(self.turns)
        order = {name: i for i, name in enumerate(dict.fromkeys(families.values()))}
        mine = tuple(t for t in self.turns if order[families[t.session]] % workers == worker)
        return replace(self, turns=mine)


def reasoning_key(answer_key: str) -> str:
    """Return the key of the reasoning that comes before an answer."""
    return f"reasoning/{answer_key}"


def _families(turns: tuple[PlannedTurn, ...]) -> dict[str, str]:
    """Return for each session the first session of those that it is tied to by `after`."""
    family = {turn.session: turn.session for turn in turns}

    def head(name: str) -> str:
        while family[name] != name:
            family[name] = family[family[name]]
            name = family[name]
        return name

    sessions = {turn.index: turn.session for turn in turns}
    for turn in turns:
        for index in turn.after:
            mine, theirs = head(turn.session), head(sessions[index])
            family[mine] = theirs
    return {name: head(name) for name in family}
