"""Quantities with units: seconds and bytes inside, words at the edges."""

from __future__ import annotations

import math
import re

_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_DURATION = re.compile(r"\s*([0-9]*\.?[0-9]+(?:e-?[0-9]+)?)\s*([a-z]*)\s*", re.IGNORECASE)


def parse_seconds(text: str | float) -> float:
    """Return seconds for "250ms", "2s", "1.5m" or a bare number of seconds.

    Raises:
        ValueError: The text is no duration; the message names it and shows the accepted forms.
    """
    if isinstance(text, int | float) and not isinstance(text, bool):
        return float(text)
    match = _DURATION.fullmatch(str(text))
    unit = (match[2] or "s").lower() if match else ""
    if match is None or unit not in _SECONDS:
        raise ValueError(f'expected a duration such as "250ms", "2s" or "1.5m", got {text!r}')
    return float(match[1]) * _SECONDS[unit]


_BYTES = {"b": 1, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12}
_BYTES |= {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_SIZE = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*([a-z]*)\s*", re.IGNORECASE)


def parse_bytes(text: str) -> int:
    """Return bytes for "80GiB", "24 GB" or a bare number of bytes.

    Raises:
        ValueError: The text is no size; the message names it and shows the accepted forms.
    """
    match = _SIZE.fullmatch(text)
    unit = (match[2] or "b").lower() if match else ""
    if match is None or unit not in _BYTES:
        raise ValueError(f'expected a size such as "80GiB", "24GB" or "1073741824", got {text!r}')
    return int(float(match[1]) * _BYTES[unit])


def format_bytes(size: float) -> str:
    """Return a size for people: "576 B", "128 KiB", "1.00 GiB"; whole numbers stay whole."""
    unit, scale = next(
        ((u, s) for u, s in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)) if abs(size) >= s),
        ("B", 1),
    )
    value = size / scale
    if scale < 2**30 and value == int(value):
        return f"{int(value)} {unit}"
    return f"{value:.2f} {unit}" if scale == 2**30 else f"{value:.1f} {unit}"


def format_seconds(seconds: float) -> str:
    """Return a duration for people: "870 µs", "43.1 ms", "2.06 s", "4m 10s"."""
    if not math.isfinite(seconds):  # NaN: nothing was measured
        return "–" if math.isnan(seconds) else "∞"
    if seconds < 0:
        return f"-{format_seconds(-seconds)}"
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms" if seconds < 0.9995 else "1.00 s"
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{int(seconds // 60)}m {int(seconds % 60):02d}s"


def format_share(share: float | None) -> str:
    """Return a fraction as a percentage with one decimal, or a dash where it is unknown."""
    return "–" if share is None else f"{100 * share:.1f} %"


def format_number(value: float | None) -> str:
    """Return a number for people: "0.0421", "81.6", "12,043"; a dash where it is unknown.

    Three significant digits, and all digits before the point.
    """
    if value is None or value != value:  # noqa: PLR0124 - NaN
        return "–"
    if value == float("inf"):
        return "∞"
    value += 0.0  # so that 0 has no sign
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
