"""How a trace is read: what its format leaves open, and what was taken for it.

A format seldom says everything: how many tokens a block id stands for, in what unit its times are,
whether a prompt is whole or only what is new. Each of these may be given; what is not given is
taken as the format was published, and a note says so. A trace without times gets arrivals.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from kvbench import seeds
from kvbench.text.tokenizer import Tokenizer
from kvbench.workload.arrivals import arrivals
from kvbench.workload.spec import PoissonArrival

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kvbench.workload.formats import Format


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOptions:
    """What a format leaves open. None: as it was published.

    Attributes:
        format: Of the file; None: guessed from its beginning.
        block_size: Tokens that one block id stands for.
        time_unit: Of time stamps and pauses.
        ids: Whether equal block ids mean the same in all sessions, or only in their own.
        tail: Whether the last, partial block has an id (`ceil`) or not (`floor`).
        semantics: Whether a row holds its whole prompt, or only what is new in its session.
        rate: Sessions a second, where the trace has no times.
        think: Seconds between two turns, where the trace does not say.
        answer_tokens: Tokens to generate, where the trace does not say.
        tokenizer: What texts are counted with; None: kvbench's own.
        history: Whether later turns repeat planned text or the model's own answers.
    """

    format: Format | None = None
    block_size: int | None = None
    time_unit: Literal["s", "ms"] | None = None
    ids: Literal["global", "local"] | None = None
    tail: Literal["ceil", "floor"] | None = None
    semantics: Literal["cumulative", "delta"] | None = None
    rate: float = 1.0
    think: float = 0.0
    answer_tokens: int = 128
    tokenizer: Path | None = None
    history: Literal["planned", "answers"] = "planned"


@dataclass(slots=True)
class Reading:
    """One reading of one trace.

    Attributes:
        path: The file, or a directory of files.
        options: What was given.
        seed: Root seed.
        limit: Most turns that are wanted; a reader may stop when it has so many.
        notes: What people should know, so far.
    """

    path: Path
    options: TraceOptions
    seed: int
    limit: int | None = None
    notes: list[str] = field(default_factory=list)
    _tokenizer: Tokenizer | None = None

    @property
    def tokenizer(self) -> Tokenizer:
        """What texts are counted with."""
        if self._tokenizer is None:
            self._tokenizer = Tokenizer.load(self.options.tokenizer)
            if self.options.tokenizer is None:
                self.note(
                    "texts are counted with kvbench's own tokenizer, and words of that length are "
                    "sent in their place; pass --tokenizer to import with the model's"
                )
        return self._tokenizer

    @property
    def second(self) -> float:
        """Units of the trace's times per second, where it has milliseconds unless said."""
        return 1.0 if self.options.time_unit == "s" else 1000.0

    def note(self, text: str) -> None:
        """Say something once."""
        if text not in self.notes:
            self.notes.append(text)

    def starts(self) -> Iterator[float]:
        """Yield when sessions begin, for a trace that does not say."""
        rate = self.options.rate
        self.note(f"the trace has no times: {rate:g} sessions a second begin at random (--rate)")
        return arrivals(PoissonArrival(rate), seeds.rng(self.seed, "arrival"))

    def up_to_limit(self, count: int) -> bool:
        """Whether more turns are wanted than `count`."""
        return self.limit is None or count < self.limit
