"""The plan: every turn that a run will send, in which order, when, and out of which text.

A plan is pure data, computed from a workload and a seed before anything is sent. Prompts are not
text yet: they are *segments*, each a key and a number of tokens. Equal keys mean equal tokens, on
every machine, so what two prompts share can be read from the plan without any tokenizer, and a
plan of a million turns stays small. `kvbench.text` turns segments into words when they are sent.

When a turn is due:

- `at` is set: at that many seconds after the run's start, whatever became of the turns before it
  (the first turn of a session; each row of a trace with time stamps);
- `at` is None: `think` seconds after the previous turn of its session has ended, or failed.

So sessions arrive open-loop, and inside a session a client waits for its answer before it asks
again. A turn that fails does not end its session: every planned turn becomes exactly one record.
"""

from __future__ import annotations

from dataclasses import dataclass, field
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
        think: Seconds between the end of the predecessor and this turn; 0 where `at` is set.
        messages: The whole prompt. For `completions` the segments of all messages, joined.
        max_tokens: Tokens to generate; the request ignores end-of-text, so exactly this many.
        answer_key: The key of the segment that stands for this turn's answer in later prompts.
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

    @property
    def content_tokens(self) -> int:
        """Prompt tokens without the chat template's."""
        return sum(message.tokens for message in self.messages)


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
    """

    name: str
    seed: int
    api: Api
    history: Literal["planned", "answers"]
    turns: tuple[PlannedTurn, ...]
    ids_block_size: int | None = None
    sessions: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sessions", len({turn.session for turn in self.turns}))

    def part(self, worker: int, workers: int) -> Plan:
        """Return the turns of worker `worker` (from 0) of `workers`: whole sessions, no overlap.

        The union of all parts is the plan, and no worker needs to ask another which part is its.
        """
        order = {name: i for i, name in enumerate(dict.fromkeys(t.session for t in self.turns))}
        mine = tuple(t for t in self.turns if order[t.session] % workers == worker)
        return Plan(self.name, self.seed, self.api, self.history, mine, self.ids_block_size)
