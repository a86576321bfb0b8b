"""The chart of predictions: what the router believed to be cached against what was, by cause.

One chart for each arm that has predictions, all on the same scale. A cause has a colour and a mark
of its own, so that it is told apart without colours too; what went as predicted is drawn first and
pale, and what did not lies on top of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvbench.report.believed import MEANINGS, sentence
from kvbench.report.canvas import INK, MUTED, Canvas, Chart, Mark, colour
from kvbench.report.words import Said
from kvbench.units import format_number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvbench.report.believed import Believed, Share
    from kvbench.report.view import RunView

    Arms = Mapping[str, RunView]

_SHOWS = (
    "Each mark is one answered turn, at most 400 of a cause. On the dashed line the router was "
    "right. Below it a pod had lost what it was chosen for; above it, it had more than the router "
    "knew."
)


@dataclass(frozen=True, slots=True)
class _Look:
    """How a cause is drawn: Matplotlib's marker, the same as a character, and the colour."""

    marker: str
    glyph: str
    ink: str


_LOOKS = {
    "none": _Look("o", "●", MUTED),
    "estimate": _Look("s", "■", colour(4)),
    "template": _Look("D", "◆", colour(3)),
    "last_block": _Look("v", "▼", colour(2)),
    "evicted": _Look("x", "×", colour(1)),
    "duplicate": _Look("+", "+", colour(5)),
    "late": _Look("^", "▲", colour(0)),
}
_OTHER = _Look("*", "★", INK)


def predictions(arms: Arms) -> list[Chart]:
    """Draw each arm that has predictions; the first chart says which have none."""
    shown = {name: view.believed for name, view in arms.items() if view.believed.predicted_tokens}
    most = max((_reach(found) for found in shown.values()), default=0.0)
    silent = [
        Said(sentence(view.believed), name) for name, view in arms.items() if name not in shown
    ]
    drawn = []
    for number, (name, found) in enumerate(shown.items()):
        arm = name if len(arms) > 1 else None
        drawn.append(_draw(found, arm, number, most, [Said(sentence(found), name), *silent]))
        silent = []
    return drawn


def _draw(
    found: Believed, arm: str | None, number: int, most: float, findings: list[Said]
) -> Chart:
    """Draw one arm; `most` is where the axes end."""
    canvas = Canvas(f"believed{number}" if number else "believed")
    canvas.axes.plot([0, most], [0, most], color=INK, linewidth=1, linestyle=(0, (4, 3)))
    for share in found.shares:
        look = _look(share)
        canvas.axes.plot(
            share.predicted, share.delivered, color=look.ink, linestyle="none",
            marker=look.marker, markersize=4 if share.cause == "none" else 5,
            alpha=0.45 if share.cause == "none" else 0.75, clip_on=False,
            markeredgewidth=1.2 if look.marker in "x+" else 0,
        )  # fmt: skip
    canvas.x_numbers("tokens that the router expected to be cached")
    canvas.y_numbers("tokens that were")
    canvas.axes.set_xlim(0, most * 1.04)
    canvas.axes.set_ylim(0, most * 1.04)
    canvas.axes.locator_params(nbins=5)
    title = "Predicted against delivered" + (f": {arm}" if arm else "")
    meanings = [
        f"{share.cause}: {MEANINGS[share.cause]}"
        for share in found.failed
        if share.cause in MEANINGS
    ]
    return canvas.chart(
        title,
        " ".join([_SHOWS, *(f"{one[0].upper()}{one[1:]}." for one in meanings)]),
        findings,
        marks=tuple(_mark(share) for share in found.shares),
    )


def _look(share: Share) -> _Look:
    return _LOOKS.get(share.cause, _OTHER)


def _mark(share: Share) -> Mark:
    look = _look(share)
    word = MEANINGS["none"] if share.cause == "none" else share.cause
    return Mark(look.glyph, look.ink, f"{word} ({format_number(share.turns)})")


def _reach(found: Believed) -> float:
    return max(
        float(values.max())
        for share in found.shares
        for values in (share.predicted, share.delivered)
    )
