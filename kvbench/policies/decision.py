"""What a policy is asked, and what it answers.

A policy is a pure object: it sees a request as prefix keys and token counts, and the pods as
numbers, and returns a `Decision` that carries its reasons. It opens no socket, reads no clock and
draws from a generator that it was given. The router tells it what became of each request.

The values that are made for every request are msgspec structs: a frozen dataclass takes ten times
as long to make, and a decision among sixteen pods makes eighteen of them.
"""

from __future__ import annotations

# A struct's annotations can be looked up.
from collections.abc import Sequence  # noqa: TC003
from typing import TYPE_CHECKING, Literal, Protocol

import msgspec

if TYPE_CHECKING:
    from kvbench.policies.pod_state import PodState

Reason = Literal["prefix", "load", "turn", "random", "session", "only"]
"""Why a pod was chosen: its cached prefix, its load, its turn, chance, the session's home, or
because it was the only one offered."""


End = Literal["", "answered", "failed", "cut", "timeout", "gone", "unread", "stopped", "broken"]
"""How a request ended on its pod: not yet, or nobody can tell; answered in full, whatever the
status; failed before any of its answer was passed on, so that another pod was asked, if one was
left; broken off in its answer; given up for taking too long; left by its client; not read by it;
cut by the router, which was told to stop; or ended by a bug of the router's."""


class RouteRequest(msgspec.Struct, frozen=True, gc=False):
    """A request, as a policy sees it.

    Attributes:
        id: The request's id.
        model: Model name asked for.
        blocks: Chain keys of the prompt's full blocks, from the start: equal keys, equal prefix.
        block_tokens: Tokens that a block stands for (exact, or estimated from characters).
        prompt_tokens: Tokens of the whole prompt (exact, or estimated).
        session: Session key that the client sent, if any.
        hashes: Where the prompt's token ids are known, the hashes of those of its blocks that an
            engine might reuse, from the start (`kvbench.kvcache.blocks`); else empty.
        hash_tokens: Tokens in each of those blocks; 0 where there are none.
        form: How its tokens were made: counts of prompts of one form say nothing of another's.
    """

    id: str
    model: str
    blocks: Sequence[int]
    block_tokens: int
    prompt_tokens: int
    session: str | None = None
    hashes: Sequence[int] = ()
    hash_tokens: int = 0
    form: str = ""


class Candidate(msgspec.Struct, frozen=True):
    """One pod in a decision, with what spoke for and against it.

    Attributes:
        pod: Its name.
        matched_tokens: Prompt tokens believed cached there.
        cost: The policy's own figure; less is better. Its unit is the policy's.
        terms: The parts that the cost is made of, by name.
    """

    pod: str
    matched_tokens: int
    cost: float
    terms: dict[str, float]


class Table(Protocol):
    """Makes the candidates of a decision when somebody looks."""

    def __call__(self) -> tuple[Candidate, ...]:
        """Return all candidates."""
        ...

    def of(self, pod: str) -> Candidate:
        """Return one of them."""
        ...


class Decision(msgspec.Struct, frozen=True):
    """Where a request goes, and why.

    Attributes:
        pod: The chosen pod.
        policy: Who chose.
        reason: Why, in one word of a small closed set, fit to be a metric label.
        matched_tokens: Prompt tokens believed cached on the chosen pod.
        table: The candidates, or what makes them when somebody looks: few decisions are looked at.
        expected_s: Seconds that the prefill is expected to take there; None if the policy does not
            think in seconds.
    """

    pod: str
    policy: str
    reason: Reason
    matched_tokens: int
    table: tuple[Candidate, ...] | Table
    expected_s: float | None = None

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """All pods that could have been chosen, the chosen one included."""
        return self.table if isinstance(self.table, tuple) else self.table()

    @property
    def chosen(self) -> Candidate:
        """The candidate that was chosen."""
        if isinstance(self.table, tuple):
            return next(one for one in self.table if one.pod == self.pod)
        return self.table.of(self.pod)


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """What became of a request that was placed.

    Attributes:
        ttft_s: Seconds from sending it to its first token; None where that cannot be told: it
            failed, or was answered in one piece with more tokens than one.
        prompt_tokens: As the pod counted them; None if it did not say.
        cached_tokens: Of those, found in the pod's cache; None if it did not say.
        served: Whether it was answered well and in full, so far as the one who says it can tell.
        end: How it ended, in one word.
        status: HTTP status with which its pod began to answer; 0 if it did not.
        prefilled: Whether its prompt was computed, so far as can be told: its first token has come,
            or was to be expected by then.
    """

    ttft_s: float | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    served: bool = False
    end: End = ""
    status: int = 0
    prefilled: bool = False

    @property
    def in_vain(self) -> bool:
        """Whether its pod has nothing of the prompt for it: refused, failed, or left too early."""
        if self.status >= 400 or self.end == "failed":
            return True
        return self.end not in {"", "answered"} and not self.prefilled


class Policy(Protocol):
    """Chooses a pod for a request."""

    @property
    def name(self) -> str:
        """The word by which it is asked for."""
        ...

    def choose(self, request: RouteRequest, pods: Sequence[PodState], now: float) -> Decision:
        """Return the decision for `request` among `pods` (never empty) at `now` seconds."""
        ...

    def placed(self, request: RouteRequest, pod: str, now: float) -> None:
        """Learn that `request` was sent to `pod`: its blocks will be there."""
        ...

    def finished(
        self, request: RouteRequest, decision: Decision, outcome: Outcome, now: float
    ) -> None:
        """Learn what became of `request`, which was sent where `decision` said."""
        ...

    def witnessed(
        self, request: RouteRequest, before: PodState, outcome: Outcome, now: float
    ) -> None:
        """Learn what became of `request`, which another policy sent to a pod.

        `before` is the pod as that policy saw it.
        """
        ...

    def forget(self, pod: str) -> None:
        """Learn that `pod` has lost its cache, or is gone."""
        ...
