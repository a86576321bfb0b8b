"""What a workload file says, typed: prefixes, sessions, agents, context, arrivals.

The classes are plain frozen dataclasses; their annotations carry the bounds that the parser
(`kvbench.workload.parse`) enforces, so each bound stands once, beside its field. The reference for
people is `workloads/README.md`.

The prefix tree: `prefixes` is a list of levels. A node of level k has `count` children on level
k + 1, each with a text of its own; a session walks down from the root, choosing a child on each
level by its `popularity`, and begins with the texts on its way. Its leaf is its *prefix group*.

A number that is left out may be solved for (`kvbench.workload.solve`): one for `working_set`, one
for `target_hit_rate`. `sessions.count` may also follow from an arrival that has an end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from kvbench.units import parse_seconds
from kvbench.workload.distributions import STRICT, Constant, Distribution, FileNumbers
from kvbench.workload.plan import Api  # noqa: TC001 - the parser reads annotations as it runs
from kvbench.workload.strategies import APPEND, Append, Context, Size, by_kind

_ONE, _NONE = Constant(1), Constant(0)

MOST_TOKENS = 2_000_000
"""Of one segment: beyond every context window of today."""

_Rate = Annotated[float, Field(strict=True, allow_inf_nan=False, gt=0, le=100_000)]
_Share = Annotated[float, Field(strict=True, allow_inf_nan=False, gt=0, lt=1)]
_Weight = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=0, le=1e9)]
_Count = Annotated[int, Field(strict=True, ge=1, le=1_000_000)]
_Name = Annotated[str, Field(strict=True, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=80)]


def _count(least: int, most: int) -> AfterValidator:
    """Return a check that whatever is drawn is a whole number from `least` to `most`."""

    def check(distribution: Distribution) -> Distribution:
        low, high = distribution.bounds
        if low < least:
            raise ValueError(f"expected at least {least}, got {low:g}")
        if high > most:
            raise ValueError(f"expected at most {most}, got {high:g}")
        if isinstance(distribution, Constant) and low != int(low):
            raise ValueError(f"expected a whole number, got {low:g}")
        return distribution

    return AfterValidator(check)


def _duration(raw: object) -> object:
    """Turn "2s" into 2; leave everything else to the parser."""
    return parse_seconds(raw) if isinstance(raw, str) else raw


Seconds = Annotated[float, BeforeValidator(_duration), Field(strict=True, gt=0, le=1e6)]
Tokens = Annotated[Distribution, _count(1, MOST_TOKENS)]
TokensOrNone = Annotated[Distribution, _count(0, MOST_TOKENS)]
Turns = Annotated[Distribution, _count(1, 2_000)]
Pause = Annotated[Distribution, BeforeValidator(_duration)]


@dataclass(frozen=True, slots=True)
class UniformPopularity:
    """Every child is as likely as the next."""

    __pydantic_config__ = STRICT
    kind: Literal["uniform"] = "uniform"
    exponent: Literal[0] = 0


@dataclass(frozen=True, slots=True)
class ZipfPopularity:
    """The k-th child has weight k^-exponent: 0 is uniform, 1 usual on the web, 2 extreme."""

    __pydantic_config__ = STRICT
    exponent: Annotated[float, Field(strict=True, allow_inf_nan=False, ge=0, le=10)]
    kind: Literal["zipf"] = "zipf"


@dataclass(frozen=True, slots=True)
class WeightedPopularity:
    """Each child has a weight of its own."""

    __pydantic_config__ = STRICT
    weights: Annotated[tuple[_Weight, ...], Field(min_length=1, max_length=10_000)]
    kind: Literal["weights"] = "weights"

    def __post_init__(self) -> None:
        if not sum(self.weights):
            raise ValueError("expected at least one weight above 0")


@dataclass(frozen=True, slots=True)
class EvenPopularity:
    """Every child as often as the next: sessions go through all, round after round, shuffled."""

    __pydantic_config__ = STRICT
    kind: Literal["even"] = "even"


def _popularity(raw: object) -> object:
    """Turn `even`, `{zipf: 1.1}` and `{weights: [3, 1]}` into the form with a `kind`."""
    if isinstance(raw, str):
        return {"kind": raw}
    if isinstance(raw, dict) and len(raw) == 1:
        ((kind, body),) = raw.items()
        return {"kind": kind, "weights" if kind == "weights" else "exponent": body}
    return raw


Popularity = Annotated[
    Annotated[
        UniformPopularity | ZipfPopularity | WeightedPopularity | EvenPopularity,
        Field(discriminator="kind"),
    ],
    BeforeValidator(_popularity),
]


@dataclass(frozen=True, slots=True)
class PrefixLevel:
    """One level of the prefix tree.

    Attributes:
        name: What a node of this level is: "tenant", "document".
        count: Children that each node of the level above has here; None: solved for.
        tokens: Length of a node's text; drawn once per node; None: solved for.
        popularity: Which child a session chooses.
    """

    __pydantic_config__ = STRICT
    name: _Name
    count: _Count | None = None
    tokens: Tokens | None = None
    popularity: Popularity = UniformPopularity()

    def __post_init__(self) -> None:
        if isinstance(self.popularity, WeightedPopularity):
            weights = len(self.popularity.weights)
            if self.count != weights:
                raise ValueError(f"expected as many weights as `count`, got {weights}")


@dataclass(frozen=True, slots=True)
class Tools:
    """Tool calls between a question and its answer: each is a request of its own.

    Attributes:
        calls: How many follow a question.
        tokens: What a tool returns.
        gap: Seconds that a tool takes.
        answer_tokens: What the model generates to call one; None: as for any answer.
    """

    __pydantic_config__ = STRICT
    calls: Annotated[Distribution, _count(0, 1_000)]
    tokens: Tokens
    gap: Pause = _NONE
    answer_tokens: Tokens | None = None


@dataclass(frozen=True, slots=True)
class Subagents:
    """Conversations that begin after an answer, and whose results the next question brings.

    Attributes:
        chance: That sub-agents start after a turn that is not the last one of its session.
        turns: Requests of one sub-agent.
        user_tokens: What is asked of it, and what each further request adds.
        answer_tokens: What it generates in each.
        count: How many start at once.
        think: Seconds between its requests.
        context: `fork` begins with the whole conversation of the parent, `fresh` with the shared
            prefix alone.
        join: Whether the parent waits for them and repeats their last answers.
    """

    __pydantic_config__ = STRICT
    chance: Annotated[float, Field(strict=True, allow_inf_nan=False, gt=0, le=1)]
    turns: Turns
    user_tokens: Tokens
    answer_tokens: Tokens
    count: Annotated[Distribution, _count(1, 100)] = _ONE
    think: Pause = _NONE
    context: Literal["fork", "fresh"] = "fork"
    join: Annotated[bool, Field(strict=True)] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Sessions:
    """The conversations.

    Attributes:
        count: How many; None: as many as arrive, or solved for.
        turns: Questions of one conversation.
        user_tokens: What the user adds in one turn.
        answer_tokens: What the model generates in one turn.
        think: Seconds from the end of an answer to the next question.
        reasoning_tokens: What the model generates before its answer.
        reasoning: Whether later turns repeat the reasoning (`echo`) or leave it out (`drop`).
        tools: Tool calls within a turn.
        subagents: Conversations that branch off.
    """

    __pydantic_config__ = STRICT
    count: _Count | None = None
    user_tokens: TokensOrNone
    answer_tokens: Tokens
    turns: Turns = _ONE
    think: Pause = _NONE
    reasoning_tokens: TokensOrNone = _NONE
    reasoning: Literal["drop", "echo"] = "drop"
    tools: Tools | None = None
    subagents: Subagents | None = None


@dataclass(frozen=True, slots=True)
class ConstantArrival:
    """One session every 1/rate seconds."""

    __pydantic_config__ = STRICT
    rate: _Rate
    kind: Literal["constant"] = "constant"


@dataclass(frozen=True, slots=True)
class PoissonArrival:
    """Sessions come independently of each other, `rate` a second on average."""

    __pydantic_config__ = STRICT
    rate: _Rate
    kind: Literal["poisson"] = "poisson"


@dataclass(frozen=True, slots=True)
class GammaArrival:
    """Gamma-distributed gaps: a `shape` below 1 makes clusters, 1 is Poisson, more is even."""

    __pydantic_config__ = STRICT
    rate: _Rate
    shape: Annotated[float, Field(strict=True, allow_inf_nan=False, ge=0.01, le=1000)]
    kind: Literal["gamma"] = "gamma"


@dataclass(frozen=True, slots=True)
class BurstArrival:
    """`size` sessions at the same moment, every `every` seconds."""

    __pydantic_config__ = STRICT
    size: Annotated[int, Field(strict=True, ge=1, le=1_000_000)]
    every: Annotated[float, BeforeValidator(parse_seconds), Field(gt=0, le=1e6)]
    kind: Literal["burst"] = "burst"


@dataclass(frozen=True, slots=True)
class RampArrival:
    """From `start` to `end` sessions a second, evenly over `over` seconds; then it ends."""

    __pydantic_config__ = STRICT
    start: Annotated[float, Field(strict=True, allow_inf_nan=False, ge=0, le=100_000)]
    end: Annotated[float, Field(strict=True, allow_inf_nan=False, ge=0, le=100_000)]
    over: Seconds
    spacing: Literal["poisson", "constant"] = "poisson"
    kind: Literal["ramp"] = "ramp"

    def __post_init__(self) -> None:
        if not self.start + self.end:
            raise ValueError("expected a rate above 0 at one end, got 0 at both")


@dataclass(frozen=True, slots=True)
class Step:
    """A rate, and for how many seconds it holds."""

    __pydantic_config__ = STRICT
    rate: _Rate
    duration: Seconds


def _step(raw: object) -> object:
    """Turn `[3, 20s]` into `{rate: 3, duration: 20s}`."""
    if isinstance(raw, list) and len(raw) == 2:
        return {"rate": raw[0], "duration": raw[1]}
    return raw


@dataclass(frozen=True, slots=True)
class LadderArrival:
    """One rate after the other; then it ends."""

    __pydantic_config__ = STRICT
    steps: Annotated[
        tuple[Annotated[Step, BeforeValidator(_step)], ...], Field(min_length=1, max_length=1000)
    ]
    spacing: Literal["poisson", "constant"] = "poisson"
    kind: Literal["ladder"] = "ladder"


@dataclass(frozen=True, slots=True)
class ReplayArrival:
    """At the times of a log, seconds, played `speed` times faster; then it ends."""

    __pydantic_config__ = STRICT
    times: Annotated[
        tuple[Annotated[float, Field(strict=True, allow_inf_nan=False)], ...],
        FileNumbers,
        Field(min_length=1),
    ]
    speed: _Rate = 1.0
    kind: Literal["replay"] = "replay"


@dataclass(frozen=True, slots=True)
class UsersArrival:
    """A closed loop: `count` users, each of whom begins a session after the last one.

    Attributes:
        count: How many.
        stagger: Seconds between the first sessions of two users.
        pause: Seconds from the end of a user's session to the next.
    """

    __pydantic_config__ = STRICT
    count: _Count
    stagger: Annotated[float, BeforeValidator(_duration), Field(strict=True, ge=0, le=1e6)] = 0.0
    pause: Pause = _NONE
    kind: Literal["users"] = "users"


Arrival = Annotated[
    Annotated[
        ConstantArrival
        | PoissonArrival
        | GammaArrival
        | BurstArrival
        | RampArrival
        | LadderArrival
        | ReplayArrival
        | UsersArrival,
        Field(discriminator="kind"),
    ],
    BeforeValidator(by_kind),
]

ENDING = (RampArrival, LadderArrival, ReplayArrival)
"""Arrivals that come to an end by themselves."""


@dataclass(frozen=True, slots=True)
class WorkingSet:
    """How many tokens the prefix tree has: `capacity` (of the pods' caches, say) × `times`."""

    __pydantic_config__ = STRICT
    capacity: Size
    times: Annotated[float, Field(strict=True, allow_inf_nan=False, gt=0, le=1e6)] = 1.0

    @property
    def tokens(self) -> float:
        """The tokens wanted."""
        return self.capacity * self.times


def _working_set(raw: object) -> object:
    """Turn a number of tokens into the form with keys."""
    return {"capacity": raw} if isinstance(raw, int) and not isinstance(raw, bool) else raw


@dataclass(frozen=True, slots=True)
class Workload:
    """A whole workload file.

    Attributes:
        name: What reports call it.
        sessions: The conversations.
        arrival: When they begin.
        description: What it stands for, for people.
        api: Endpoint to send to.
        history: Whether later turns repeat the planned answers or the model's own.
        seed: Root seed, unless the command line gives one.
        prefixes: Levels of the prefix tree, from the root; empty: nothing is shared.
        context: What a client does when a conversation outgrows the window.
        target_hit_rate: Share of prompt tokens that an endless cache shall hit; what is left out
            is solved for it.
        working_set: Tokens that the prefix tree shall have; likewise.
        gates: What a run of it is judged by, as lines; `kvbench.gates` reads them.
    """

    __pydantic_config__ = STRICT
    name: _Name
    sessions: Sessions
    arrival: Arrival
    description: Annotated[str, Field(strict=True, max_length=10_000)] = ""
    api: Api = "chat"
    history: Literal["planned", "answers"] = "planned"
    seed: Annotated[int, Field(strict=True, ge=0, lt=2**64)] = 0
    prefixes: Annotated[tuple[PrefixLevel, ...], Field(max_length=16)] = ()
    context: Context = APPEND
    target_hit_rate: _Share | None = None
    working_set: Annotated[WorkingSet, BeforeValidator(_working_set)] | None = None
    gates: Annotated[tuple[str, ...], Field(max_length=100)] = ()

    def __post_init__(self) -> None:
        least = self.sessions.user_tokens.bounds[0]
        if self.api == "chat" and least < 1:
            raise ValueError("sessions.user_tokens: expected at least 1 with `api: chat`, got 0")
        if not self.prefixes and least < 1:
            raise ValueError("prefixes: expected at least one level where user_tokens can be 0")
        if not isinstance(self.context, Append) and least < 1:
            raise ValueError("context: expected `append` where user_tokens can be 0")
        names = [level.name for level in self.prefixes]
        if len(set(names)) < len(names):
            raise ValueError(f"prefixes: expected names that differ, got {', '.join(names)}")
        self._check_unknowns()

    @property
    def unknowns(self) -> tuple[tuple[str | int, ...], ...]:
        """The paths of the numbers that were left out and follow from nothing else."""
        found: list[tuple[str | int, ...]] = []
        for i, level in enumerate(self.prefixes):
            found += [("prefixes", i, "count")] if level.count is None else []
            found += [("prefixes", i, "tokens")] if level.tokens is None else []
        if self.sessions.count is None and not isinstance(self.arrival, ENDING):
            found.append(("sessions", "count"))
        return tuple(found)

    def _check_unknowns(self) -> None:
        """Raise ValueError where more, or other, numbers are left out than can be solved for."""
        unknowns = self.unknowns
        given = [n for n in ("working_set", "target_hit_rate") if getattr(self, n) is not None]
        if len(unknowns) > len(given):
            raise ValueError(f"{'.'.join(map(str, unknowns[0]))}: missing")
        if len(unknowns) < len(given):
            raise ValueError(
                f"{given[len(unknowns)]}: expected a number to be left out for it, got all given"
            )
        counts = [path for path in unknowns if path[0] == "prefixes" and path[-1] == "count"]
        if self.working_set is not None and len(counts) != 1:
            raise ValueError("working_set: expected one level of prefixes without `count`")
