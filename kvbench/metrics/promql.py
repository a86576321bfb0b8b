"""PromQL from catalogue entries: the few idioms that dashboards and rules share. Text, no I/O.

Rules, each of which somebody's dashboard breaks:

- A counter is read through `rate`, `increase` or `resets`, a histogram through the rate of its
  buckets, its count or its sum; asking for anything else is an assertion here and not an empty
  panel later.
- A ratio divides sums by sums, never averages ratios, and says nothing where there was no traffic:
  `x / (y > 0)`. Quantiles drop the NaN of an idle histogram by `>= 0`, which NaN is not.
- A quantile is taken of summed buckets; quantiles are never averaged.
- A quantity is selected under each engine's current name. One target is one engine, so that a
  selector over all names never meets two series with the same labels. Older names are left to the
  exporter: a pod may serve both at once.
"""

from __future__ import annotations

import zlib
from typing import TypeAlias

from kvbench.metrics.engines import ENGINES, Quantity
from kvbench.metrics.metric import Metric

Series: TypeAlias = Metric | Quantity
"""What can be selected: a family of ours, or a quantity that engines tell."""


def names_of(what: Series) -> list[str]:
    """Return the names to select: one for each engine that has it."""
    if isinstance(what, Metric):
        return [what.name]
    return list(dict.fromkeys(names[0] for engine in ENGINES if (names := what.of(engine))))


def selector(what: Series, matchers: str = "", suffix: str = "") -> str:
    """Return an instant selector: `name_bucket{job="x"}`; `matchers` as between the braces."""
    names = [name + suffix for name in names_of(what)]
    if len(names) == 1:
        return names[0] + (f"{{{matchers}}}" if matchers else "")
    rest = f",{matchers}" if matchers else ""
    return f'{{__name__=~"{"|".join(names)}"{rest}}}'


def gauge(what: Series, matchers: str = "") -> str:
    """Return the selector of a gauge."""
    assert what.kind in {"gauge", "info"}, what
    return selector(what, matchers)


def rate(what: Series, window: str, matchers: str = "", part: str = "") -> str:
    """Return a rate per second of a counter, or of a histogram's `part`.

    Args:
        what: A counter; or a histogram, with a part.
        window: Of the rate: "5m", "$__rate_interval".
        matchers: Between the braces.
        part: "bucket", "count" or "sum" of a histogram.
    """
    assert what.kind == ("histogram" if part else "counter"), (what, part)
    return f"rate({selector(what, matchers, f'_{part}' if part else '')}[{window}])"


def increase(what: Series, window: str, matchers: str = "") -> str:
    """Return by how much a counter grew over a window."""
    assert what.kind == "counter", what
    return f"increase({selector(what, matchers)}[{window}])"


def resets(what: Series, window: str, matchers: str = "") -> str:
    """Return how often a counter began anew within a window."""
    assert what.kind == "counter", what
    return f"resets({selector(what, matchers)}[{window}])"


def total(expression: str, by: str = "") -> str:
    """Return the sum of an expression, by labels ("job, pod") if given."""
    return f"sum by ({by}) ({expression})" if by else f"sum({expression})"


def ratio(numerator: str, denominator: str) -> str:
    """Return a quotient that is absent where the denominator is 0."""
    return f"{numerator} / ({denominator} > 0)"


def quantile(share: float, what: Series, window: str, matchers: str = "", by: str = "") -> str:
    """Return a quantile of a histogram, absent where nothing was observed."""
    labels = f"le, {by}" if by else "le"
    buckets = total(rate(what, window, matchers, "bucket"), labels)
    return f"histogram_quantile({share:g}, {buckets}) >= 0"


def mean(what: Series, window: str, matchers: str = "", by: str = "") -> str:
    """Return the mean of what a histogram observed, absent where that is nothing."""
    return ratio(
        total(rate(what, window, matchers, "sum"), by),
        total(rate(what, window, matchers, "count"), by),
    )


def within(most: float, what: Series, window: str, matchers: str = "", by: str = "") -> str:
    """Return the share of a histogram's observations that are at most `most`, a bucket's bound."""
    inside = f"{matchers},{bound(most)}" if matchers else bound(most)
    return ratio(
        total(rate(what, window, inside, "bucket"), by),
        total(rate(what, window, matchers, "count"), by),
    )


def bound(seconds: float) -> str:
    """Return the matcher of a bucket's bound in both spellings: 1 is `1.0` in text, `1` later."""
    text = repr(float(seconds))
    both = f"{text[:-2]}|{text[:-2]}\\\\.0" if text.endswith(".0") else text.replace(".", "\\\\.")
    return f'le=~"{both}"'


def panel_id(title: str) -> int:
    """Return a panel's number, which stays when panels are moved: links go by it."""
    return zlib.crc32(title.encode()) % 100_000 + 1
