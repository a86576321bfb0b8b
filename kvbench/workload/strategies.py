"""Context strategies, as a workload file names them: what is kept of a conversation that outgrew.

    context: {gist_recent: {window: 8192, keep: 1600, recent: 3200}}

What they do is `kvbench.workload.context`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from kvbench.workload.distributions import STRICT

Size = Annotated[int, Field(strict=True, ge=1, le=1_000_000_000_000)]
"""A number of tokens."""


@dataclass(frozen=True, slots=True)
class Append:
    """Everything is sent, however long it has become."""

    __pydantic_config__ = STRICT
    kind: Literal["append"] = "append"


APPEND = Append()
"""What a client does that does nothing."""


@dataclass(frozen=True, slots=True)
class DropOldest:
    """The oldest messages after the shared prefix go, until the rest fits."""

    __pydantic_config__ = STRICT
    window: Size
    kind: Literal["drop_oldest"] = "drop_oldest"


@dataclass(frozen=True, slots=True)
class Gist:
    """The first `keep` tokens stay, and the question."""

    __pydantic_config__ = STRICT
    window: Size
    keep: Size
    kind: Literal["gist"] = "gist"

    def __post_init__(self) -> None:
        _fits(self.window, self.keep)


@dataclass(frozen=True, slots=True)
class GistRecent:
    """The first `keep` tokens stay, the last messages of at most `recent` tokens, the question."""

    __pydantic_config__ = STRICT
    window: Size
    keep: Size
    recent: Size
    kind: Literal["gist_recent"] = "gist_recent"

    def __post_init__(self) -> None:
        _fits(self.window, self.keep + self.recent)


@dataclass(frozen=True, slots=True)
class Summary:
    """The model is asked for a summary of `tokens`, which then stands for what came before.

    The last messages of at most `recent` tokens stay beside it.
    """

    __pydantic_config__ = STRICT
    window: Size
    tokens: Size
    recent: Annotated[int, Field(strict=True, ge=0)] = 0
    kind: Literal["summary"] = "summary"

    def __post_init__(self) -> None:
        _fits(self.window, self.tokens + self.recent)


def _fits(window: int, kept: int) -> None:
    """Raise ValueError where a strategy keeps as much as made it necessary."""
    if kept >= window:
        raise ValueError(
            f"expected to keep less than the window of {window:,} tokens, got {kept:,}"
        )


def by_kind(raw: object) -> object:
    """Turn `{poisson: {…}}` into `{kind: poisson, …}`."""
    if isinstance(raw, dict) and len(raw) == 1:
        ((kind, body),) = raw.items()
        return {**body, "kind": kind} if isinstance(body, dict) else {"kind": kind}
    return {"kind": ", ".join(map(str, raw))} if isinstance(raw, dict) else {"kind": raw}


Context = Annotated[
    Annotated[Append | DropOldest | Gist | GistRecent | Summary, Field(discriminator="kind")],
    BeforeValidator(by_kind),
]
"""One of them."""
