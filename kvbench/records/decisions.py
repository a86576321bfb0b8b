"""What a router decided on the requests of a run, and what came of it.

A router shows its last decisions (`GET /decisions`); while a run goes on they are collected in the
run's folder, a JSON line each, in the order in which the requests ended (`DecisionLog`). The faster
they come, the sooner is the next look; what was lost all the same is counted. Rows and decisions
are joined by the request's id. A request that was tried on several pods has a decision
for each.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator
    from pathlib import Path

EVERY_SECONDS = 0.5
"""Between two looks at a router's decisions, where they come slowly: it keeps a thousand."""

_T = TypeVar("_T")
_MOST_AT_ONCE = 100  # the router makes them while requests wait
_WANTED = 250  # of a look: four times as many are kept


class Option(msgspec.Struct, frozen=True):
    """A pod that could have been chosen.

    Attributes:
        pod: Its name.
        matched_tokens: Prompt tokens that the policy took for cached there.
        cost: The policy's figure; less is better.
        terms: What the cost is made of.
        trust: Whether what it holds is known: "exact", "degraded", "cold".
        held_tokens: Prompt tokens that it held by its own account; None where that is not exact.
        expected_ttft_s: Seconds to first token that were to be expected there, if it is exact.
    """

    pod: str
    matched_tokens: int
    cost: float
    terms: dict[str, float]
    trust: str
    held_tokens: int | None = None
    expected_ttft_s: float | None = None


class Entry(msgspec.Struct, kw_only=True):
    """A decision, and what came of it.

    Attributes:
        id: The request's id.
        at: When it was decided, calendar seconds.
        model: The model asked for.
        pod: The chosen pod.
        policy: Who chose.
        reason: Why, in one word.
        prompt_tokens: As the router counted or estimated them.
        exact: Whether the tokens are known, so that pods could be matched exactly.
        predicted_tokens: Cached tokens that were predicted.
        candidates: All that could have been chosen, the cheapest first.
        regret_s: Expected seconds to first token there, less those at the best pod, by what the
            pods really held; None where that is not known of every pod.
        number: Which request it was to end, counted from 1; 0 while it has not.
        end: How it ended there, in one word (`kvbench.policies.decision.End`); "" while it has not.
        status: HTTP status with which the pod began to answer; 0 if it did not.
        ttft_s: Seconds to its first token; None where that cannot be told.
        pod_prompt_tokens: Prompt tokens as the pod counted them.
        cached_tokens: Of these, found in its cache.
        cause: Why that is not what was predicted; "none" if it is.
    """

    id: str
    at: float
    model: str
    pod: str
    policy: str
    reason: str
    prompt_tokens: int
    exact: bool
    predicted_tokens: int
    candidates: list[Option]
    regret_s: float | None = None
    number: int = 0
    end: str = ""
    status: int = 0
    ttft_s: float | None = None
    pod_prompt_tokens: int | None = None
    cached_tokens: int | None = None
    cause: str | None = None


class _Page(msgspec.Struct):
    decisions: list[Entry]
    ended: int


class DecisionLog:
    """Collects the decisions on a run's requests, those alone, in a file.

    Args:
        path: The file.
        prefix: With what the ids of the run's requests begin.
        get: Returns what the router answers at a path; None where it does not answer, or refuses.

    Attributes:
        over: Whether there is nothing to collect: nobody tells decisions, or the disk takes none.
        lost: Decisions, whosever, that the router had dropped before they were asked for.
        wait_s: Seconds until the next look.
    """

    def __init__(self, path: Path, prefix: str, get: Callable[[str], bytes | None]) -> None:
        self._path = path
        self._prefix = prefix
        self._get = get
        self._seen = 0
        self.over = False
        self.lost = 0
        self.wait_s = EVERY_SECONDS

    def begin(self) -> None:
        """Ask where the router is, before the run's first request; one that tells nothing is it."""
        page = self._ask(0, 1)
        self.over = page is None
        self._seen = 0 if page is None else page.ended

    def collect(self) -> None:
        """Append all that is new."""
        before = self._seen
        while not self.over and self._collect() == _MOST_AT_ONCE:
            pass
        came = max(self._seen - before, _WANTED / 2)
        self.wait_s = min(self.wait_s * _WANTED / came, EVERY_SECONDS)

    def _collect(self) -> int:
        """Append what is new, at most so much; return how much that was."""
        page = self._ask(self._seen, _MOST_AT_ONCE)
        if page is None:
            return 0
        if page.decisions:
            self.lost += max(page.decisions[0].number - self._seen - 1, 0)
        self._seen = max((entry.number for entry in page.decisions), default=page.ended)
        ours = [entry for entry in page.decisions if entry.id.startswith(self._prefix)]
        try:
            with self._path.open("ab") as file:
                file.write(b"".join(msgspec.json.encode(entry) + b"\n" for entry in ours))
        except OSError:  # a disk that is full ends the collecting, not the run
            self.over = True
            return 0
        return len(page.decisions)

    def _ask(self, since: int, most: int) -> _Page | None:
        body = self._get(f"/decisions?since={since}&limit={most}")
        with suppress(msgspec.MsgspecError, UnicodeDecodeError):
            return None if body is None else msgspec.json.decode(body, type=_Page)
        return None


class _Outcome(msgspec.Struct):
    """Of a decision, what a row needs: a hundredth of its line, and read in a tenth of the time."""

    id: str
    cause: str | None = None


def read_decisions(path: Path, wanted: Container[str] | None = None) -> dict[str, list[Entry]]:
    """Return the decisions in a file, by the request's id; a line that is broken is passed over.

    Args:
        path: The file; one that is not there, or cannot be read, has no decisions.
        wanted: The requests' ids; None is all.
    """
    found: dict[str, list[Entry]] = {}
    for entry in _read(path, Entry):
        if wanted is None or entry.id in wanted:
            found.setdefault(entry.id, []).append(entry)
    return found


def read_causes(path: Path) -> dict[str, str]:
    """Return why predictions failed, or "none", by the request's id.

    The last decision on a request counts: that of the pod that answered. What `read_decisions`
    passes over is passed over here.
    """
    found = {outcome.id: outcome.cause for outcome in _read(path, _Outcome)}
    return {identity: cause for identity, cause in found.items() if cause is not None}


def _read(path: Path, form: type[_T]) -> Iterator[_T]:
    decoder = msgspec.json.Decoder(form)
    with suppress(OSError), path.open("rb") as lines:
        for line in lines:
            with suppress(msgspec.MsgspecError, UnicodeDecodeError):
                yield decoder.decode(line)
