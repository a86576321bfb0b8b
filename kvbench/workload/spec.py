"""What a workload file says, typed: prefixes, sessions, arrivals.

The classes are plain frozen dataclasses; their annotations carry the bounds that the parser
(`kvbench.workload.parse`) enforces, so each bound stands once, beside its field. The reference for
people is `workloads/README.md`.

The prefix tree: `prefixes` is a list of levels. A node of level k has `count` children on level
k + 1, each with a text of its own; a session walks down from the root, choosing a child on each
level by its `popularity`, and begins with the texts on its way. Its leaf is its *prefix group*.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from kvbench.units import parse_seconds
from kvbench.workload.distributions import STRICT, Constant, Distribution
from kvbench.workload.plan import Api  # noqa: TC001 - the parser reads annotations as it runs

_ONE, _NONE = Constant(1), Constant(0)

MOST_TOKENS = 2_000_000
"""Of one segment: beyond every context window of today."""

_Rate = Annotated[float, Field(strict=True, allow_inf_nan=False, gt=0, le=100_000)]
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


def _popularity(raw: object) -> object:
    """Turn `uniform` and `{zipf: 1.1}` into the form with a `kind`."""
    if isinstance(raw, str):
        return {"kind": raw}
    if isinstance(raw, dict) and len(raw) == 1:
        ((kind, body),) = raw.items()
        return {"kind": kind, "exponent": body}
    return raw


Popularity = Annotated[
    Annotated[UniformPopularity | ZipfPopularity, Field(discriminator="kind")],
    BeforeValidator(_popularity),
]


@dataclass(frozen=True, slots=True)
class PrefixLevel:
    """One level of the prefix tree.

    Attributes:
        name: What a node of this level is: "tenant", "document".
        count: Children that each node of the level above has here.
        tokens: Length of a node's text; drawn once per node.
        popularity: Which child a session chooses.
    """

    __pydantic_config__ = STRICT
    name: _Name
    count: Annotated[int, Field(strict=True, ge=1, le=1_000_000)]
    tokens: Tokens
    popularity: Popularity = UniformPopularity()


@dataclass(frozen=True, slots=True)
class Sessions:
    """The conversations.

    Attributes:
        count: How many.
        turns: Requests of one conversation.
        user_tokens: What the user adds in one turn.
        answer_tokens: What the model generates in one turn.
        think: Seconds from the end of an answer to the next turn.
    """

    __pydantic_config__ = STRICT
    count: Annotated[int, Field(strict=True, ge=1, le=1_000_000)]
    user_tokens: TokensOrNone
    answer_tokens: Tokens
    turns: Turns = _ONE
    think: Pause = _NONE


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


def _arrival(raw: object) -> object:
    """Turn `{poisson: {…}}` into `{kind: poisson, …}`."""
    if isinstance(raw, dict) and len(raw) == 1:
        ((kind, body),) = raw.items()
        return {**body, "kind": kind} if isinstance(body, dict) else {"kind": kind}
    return {"kind": ", ".join(map(str, raw))} if isinstance(raw, dict) else {"kind": raw}


Arrival = Annotated[
    Annotated[
        ConstantArrival | PoissonArrival | GammaArrival | BurstArrival,
        Field(discriminator="kind"),
    ],
    BeforeValidator(_arrival),
]


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

    def __post_init__(self) -> None:
        if self.api == "chat" and self.sessions.user_tokens.bounds[0] < 1:
            raise ValueError("sessions.user_tokens: expected at least 1 with `api: chat`, got 0")
        if not self.prefixes and self.sessions.user_tokens.bounds[0] < 1:
            raise ValueError("prefixes: expected at least one level where user_tokens can be 0")
        names = [level.name for level in self.prefixes]
        if len(set(names)) < len(names):
            raise ValueError(f"prefixes: expected names that differ, got {', '.join(names)}")
