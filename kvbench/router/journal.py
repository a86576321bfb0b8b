"""What was decided, why, and what came of it: the last decisions, kept to be asked for.

An entry is made when a pod has been chosen and completed when the request has ended. The last so
many are kept in memory; where a file is given, each becomes a line of it when it is complete, for
as long as the disk takes them. A request that was tried on several pods has an entry for each.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections import deque
from typing import TYPE_CHECKING, Final

import msgspec

from kvbench.errors import InputError
from kvbench.policies.decision import Decision, Outcome
from kvbench.policies.prediction import Cause  # noqa: TC001 - a struct's annotation
from kvbench.records.decisions import Entry, Option

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import BinaryIO

logger = logging.getLogger(__name__)

LONGEST_ID: Final = 256
"""Characters of a request's id that are kept."""

_MOST_KEPT: Final = 1000
_NOTHING_YET: Final = Outcome()


class Record(msgspec.Struct):
    """A decision as it is kept; making its entry takes longer, and few are ever looked at.

    Attributes:
        id: The request's id.
        at: Calendar seconds.
        model: The model asked for.
        decision: The decision.
        prompt_tokens: As counted or estimated.
        block: Tokens per block that pods were matched in; 0 where tokens are not known.
        held: Blocks of the prompt that pods held, of those that are exact.
        ttfts: Expected seconds to first token there.
        trusts: How far the others are believed.
        waiting_tokens: Uncached tokens that were in flight on the chosen pod.
        in_flight: Requests that were.
        evictions: How many had been seen, over all pods.
        outcome: What became of it; nothing yet.
        regret_s: See `Entry`; so are the rest.
    """

    id: str
    at: float
    model: str
    decision: Decision
    prompt_tokens: int
    block: int
    held: dict[str, int]
    ttfts: dict[str, float]
    trusts: dict[str, str]
    waiting_tokens: int = 0
    in_flight: int = 0
    evictions: int = 0
    outcome: Outcome = _NOTHING_YET
    regret_s: float | None = None
    number: int = 0
    cause: Cause | None = None

    def entry(self) -> Entry:
        """Return it as it is shown."""
        decision, held, outcome = self.decision, self.held, self.outcome
        options = [
            Option(
                one.pod,
                one.matched_tokens,
                one.cost,
                one.terms,
                "exact" if one.pod in held else self.trusts.get(one.pod, "cold"),
                held[one.pod] * self.block if one.pod in held else None,
                self.ttfts.get(one.pod),
            )
            for one in sorted(decision.candidates, key=lambda one: one.cost)
        ]
        return Entry(
            id=self.id,
            at=self.at,
            model=self.model,
            pod=decision.pod,
            policy=decision.policy,
            reason=decision.reason,
            prompt_tokens=self.prompt_tokens,
            exact=self.block > 0,
            predicted_tokens=decision.matched_tokens,
            candidates=options,
            regret_s=self.regret_s,
            number=self.number,
            end=outcome.end,
            status=outcome.status,
            ttft_s=outcome.ttft_s,
            pod_prompt_tokens=outcome.prompt_tokens,
            cached_tokens=outcome.cached_tokens,
            cause=self.cause,
        )


class Journal:
    """The last decisions.

    Args:
        file: Where each is written too, a JSON line each.
        most: How many are kept in memory.

    Raises:
        InputError: The file cannot be written.
    """

    def __init__(self, file: Path | None = None, most: int = _MOST_KEPT) -> None:
        self._records: deque[Record] = deque(maxlen=most)
        self._ended: deque[Record] = deque(maxlen=most)
        self._count = 0
        self._file: BinaryIO | None = None
        if file is not None:
            try:
                self._file = file.open("ab", buffering=2**16)
            except OSError as error:
                raise InputError(
                    f"--decision-log {file}: cannot be written: {error.strerror}",
                    hint="give a file in a directory that exists",
                ) from None

    def __len__(self) -> int:
        return len(self._records)

    def begin(self, record: Record) -> None:
        """Keep a decision."""
        self._records.append(record)

    def complete(self, record: Record) -> None:
        """Take note that a request has ended; write its line."""
        self._count += 1
        record.number = self._count
        self._ended.append(record)
        if self._file is not None:
            self._try(self._file.write, msgspec.json.encode(record.entry()) + b"\n")

    def of(self, identity: str) -> list[Entry]:
        """Return the decisions on a request, in their order; none if it is not known any more."""
        return [record.entry() for record in self._records if record.id == identity]

    def latest(self, most: int) -> list[Entry]:
        """Return the last decisions, the newest first."""
        return [record.entry() for record in itertools.islice(reversed(self._records), most)]

    def since(self, number: int, most: int) -> list[Entry]:
        """Return the decisions whose requests have ended since that one, in that order."""
        missed = min(self._count - number, len(self._ended))
        first = len(self._ended) - max(missed, 0)
        return [record.entry() for record in itertools.islice(self._ended, first, first + most)]

    @property
    def count(self) -> int:
        """How many requests have ended: the number of the last."""
        return self._count

    def flush(self) -> None:
        """Have what was written arrive in the file."""
        if self._file is not None:
            self._try(self._file.flush)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._try(self._file.close)
            self._file = None

    def _try(self, act: Callable[..., object], *what: bytes) -> None:
        """Do something with the file; a disk that takes no more ends the file, not the router."""
        try:
            act(*what)
        except OSError as error:
            file, self._file = self._file, None
            assert file is not None
            with contextlib.suppress(OSError):  # it tries to write what is left
                file.close()
            logger.error(  # noqa: TRY400 - said
                "--decision-log %s: %s; no further decisions are written", file.name, error.strerror
            )
