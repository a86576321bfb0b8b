"""Numbers that a workload file gives as a constant or as a distribution.

In the file a distribution is a number (`120`) or a mapping with one key, its kind:
`{uniform: [50, 200]}`, `{normal: {mean: 120, std: 30, min: 1, max: 400}}`. Every kind is bounded on
both sides, so that the longest prompt of a plan is known before it is drawn; where the mathematics
is unbounded, `max` is required and values beyond the bounds become the bound.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BeforeValidator, ConfigDict, Field, ValidationInfo

from kvbench.workload.number_file import read_numbers

if TYPE_CHECKING:
    from random import Random

STRICT = ConfigDict(extra="forbid")

_Number = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=0, le=1e9)]
_Positive = Annotated[float, Field(strict=True, allow_inf_nan=False, gt=0, le=1e9)]


def _ordered(least: float, most: float) -> None:
    """Raise ValueError where two bounds stand the wrong way round."""
    if least > most:
        raise ValueError(f"expected the smaller bound first, got {least:g} and {most:g}")


@dataclass(frozen=True, slots=True)
class Constant:
    """Always `value`."""

    __pydantic_config__ = STRICT
    value: _Number
    kind: Literal["constant"] = "constant"

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the greatest number that can be drawn."""
        return self.value, self.value

    def draw(self, _: Random) -> float:
        """Return `value`."""
        return self.value


@dataclass(frozen=True, slots=True)
class Uniform:
    """Anything from `low` to `high`, equally likely."""

    __pydantic_config__ = STRICT
    low: _Number
    high: _Number
    kind: Literal["uniform"] = "uniform"

    def __post_init__(self) -> None:
        _ordered(self.low, self.high)

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the greatest number that can be drawn."""
        return self.low, self.high

    def draw(self, rng: Random) -> float:
        """Return a number from `low` to `high`."""
        return rng.uniform(self.low, self.high)


@dataclass(frozen=True, slots=True)
class Normal:
    """The bell curve, cut at `min` and `max`."""

    __pydantic_config__ = STRICT
    mean: _Number
    std: _Number
    max: _Number
    min: _Number = 0.0
    kind: Literal["normal"] = "normal"

    def __post_init__(self) -> None:
        _ordered(self.min, self.max)

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the greatest number that can be drawn."""
        return self.min, self.max

    def draw(self, rng: Random) -> float:
        """Return a normal number within the bounds."""
        return min(max(rng.normalvariate(self.mean, self.std), self.min), self.max)


@dataclass(frozen=True, slots=True)
class LogNormal:
    """Many small, a few large: half lie below `median`; `sigma` 1 is a wide spread."""

    __pydantic_config__ = STRICT
    median: _Positive
    sigma: _Number
    max: _Number
    min: _Number = 0.0
    kind: Literal["lognormal"] = "lognormal"

    def __post_init__(self) -> None:
        _ordered(self.min, self.max)

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the greatest number that can be drawn."""
        return self.min, self.max

    def draw(self, rng: Random) -> float:
        """Return a log-normal number within the bounds."""
        exponent = min(rng.normalvariate(0.0, self.sigma), 700.0)  # e^710 is beyond a float
        return min(max(self.median * math.exp(exponent), self.min), self.max)


@dataclass(frozen=True, slots=True)
class Exponential:
    """Waiting times of somebody without memory: `mean` on average, cut at `max`."""

    __pydantic_config__ = STRICT
    mean: _Positive
    max: _Number
    min: _Number = 0.0
    kind: Literal["exponential"] = "exponential"

    def __post_init__(self) -> None:
        _ordered(self.min, self.max)

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the greatest number that can be drawn."""
        return self.min, self.max

    def draw(self, rng: Random) -> float:
        """Return an exponential number within the bounds."""
        return min(max(rng.expovariate(1 / self.mean), self.min), self.max)


@dataclass(frozen=True, slots=True)
class Zipf:
    """The whole numbers from `min` to `max`; the k-th of them with weight k^-exponent."""

    __pydantic_config__ = STRICT
    exponent: _Number
    max: Annotated[int, Field(strict=True, ge=0, le=1_000_000)]
    min: Annotated[int, Field(strict=True, ge=0, le=1_000_000)] = 1
    kind: Literal["zipf"] = "zipf"

    def __post_init__(self) -> None:
        _ordered(self.min, self.max)

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the greatest number that can be drawn."""
        return self.min, self.max

    def draw(self, rng: Random) -> float:
        """Return a whole number within the bounds."""
        return self.min + draw_rank(rng, self.max - self.min + 1, self.exponent)


@dataclass(frozen=True, slots=True)
class Choice:
    """One of `values`, in proportion to `weights` (all alike where there are none)."""

    __pydantic_config__ = STRICT
    values: Annotated[tuple[_Number, ...], Field(min_length=1, max_length=1000)]
    weights: tuple[_Number, ...] | None = None
    kind: Literal["choice"] = "choice"

    def __post_init__(self) -> None:
        if self.weights is not None:
            if len(self.weights) != len(self.values):
                raise ValueError(
                    f"expected as many weights as values, got {len(self.weights)} for "
                    f"{len(self.values)}"
                )
            if not sum(self.weights):
                raise ValueError("expected at least one weight above 0")

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the greatest number that can be drawn."""
        return min(self.values), max(self.values)

    def draw(self, rng: Random) -> float:
        """Return one of the values."""
        return rng.choices(self.values, self.weights)[0]


def _from_file(raw: object, info: ValidationInfo) -> object:
    """Read `lengths.txt` or `{file: log.csv, column: output}`; leave a list to the parser."""
    if isinstance(raw, str):
        raw = {"file": raw}
    if not isinstance(raw, dict):
        return raw
    file, column = raw.get("file"), raw.get("column")
    if set(raw) - {"file", "column"} or not isinstance(file, str):
        raise ValueError("expected a list, a file, or {file: …, column: …}")
    folder = (info.context or {}).get("folder", Path())
    return read_numbers(folder / file, None if column is None else str(column))


FileNumbers = BeforeValidator(_from_file)
"""Marks a list of numbers that may stand in a file; its name is relative to the workload's."""


@dataclass(frozen=True, slots=True)
class Empirical:
    """What was measured: any of `values`, equally likely."""

    __pydantic_config__ = STRICT
    values: Annotated[tuple[_Number, ...], FileNumbers, Field(min_length=1)]
    kind: Literal["empirical"] = "empirical"

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the greatest number that can be drawn."""
        return min(self.values), max(self.values)

    def draw(self, rng: Random) -> float:
        """Return one of the values."""
        return rng.choice(self.values)


def tagged(raw: object) -> object:
    """Turn the file's short form into the form with a `kind`, for the parser.

    `5` is `{kind: constant, value: 5}`; `{normal: {…}}` is `{kind: normal, …}`; the lists of
    `uniform` and `choice` become their fields. Whatever is not understood is left to the parser.
    """
    if not isinstance(raw, dict):
        return {"kind": "constant", "value": raw}
    if len(raw) != 1:
        return {**raw, "kind": ", ".join(map(str, raw)) or "nothing"}
    ((kind, body),) = raw.items()
    if kind == "uniform" and isinstance(body, list):
        if len(body) != 2:
            raise ValueError(f"expected two numbers after `uniform`, got {len(body)}")
        return {"kind": kind, "low": body[0], "high": body[1]}
    if kind == "empirical" or (kind == "choice" and isinstance(body, list)):
        return {"kind": kind, "values": body}
    return {**body, "kind": kind} if isinstance(body, dict) else {"kind": kind}


Distribution = Annotated[
    Annotated[
        Constant | Uniform | Normal | LogNormal | Exponential | Zipf | Choice | Empirical,
        Field(discriminator="kind"),
    ],
    BeforeValidator(tagged),
]
"""A number of a workload file: a constant or a distribution."""


def draw_whole(distribution: Distribution, rng: Random) -> int:
    """Return a whole number: what was drawn, rounded."""
    return round(distribution.draw(rng))


def mean_of(distribution: Distribution, rng: Random, draws: int = 1000) -> float:
    """Return about the mean of what is drawn: exact for a constant, else of a sample."""
    if isinstance(distribution, Constant):
        return distribution.value
    return sum(distribution.draw(rng) for _ in range(draws)) / draws


def draw_rank(rng: Random, count: int, exponent: float) -> int:
    """Return a rank from 0 to `count` - 1; rank k has weight (k + 1)^-exponent."""
    return rng.choices(range(count), cum_weights=_zipf_weights(count, exponent))[0]


@lru_cache(maxsize=8)
def _zipf_weights(count: int, exponent: float) -> list[float]:
    """Return the cumulative weights of the ranks."""
    return list(itertools.accumulate((k + 1) ** -exponent for k in range(count)))
