"""The charts of the report: each a picture, what it shows, and what these runs show in it.

Every chart is a function of the arms (name → `RunView`) and returns None where there is nothing to
draw. The sentences are made of the same numbers as the picture and the table, so they cannot
disagree with them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from kvbench.report import words
from kvbench.report.believed_chart import predictions
from kvbench.report.canvas import INK, MUTED, Canvas, colour, drawing, line_style, printable
from kvbench.report.view import TURNS_SHOWN

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from kvbench.records.stats import PodTraffic
    from kvbench.report.canvas import Chart
    from kvbench.report.view import Curve, RunView, Series

    Arms = Mapping[str, RunView]

_SHORTEST_S = 1e-5  # where a logarithmic axis of lateness begins: sooner is on time


def charts(arms: Arms, lateness_limit_s: float) -> list[Chart]:
    """Return all charts that these arms have data for, in the page's order."""
    with drawing():
        drawn = [
            _ttft_curves(arms),
            _ttft_by_turn(arms),
            _hit_rate_over_time(arms),
            _hit_rate_by_turn(arms),
            _pod_traffic(arms),
            _ttft_by_hit_share(arms),
            _ttft_by_uncached(arms),
            *predictions(arms),
            _kv_usage(arms),
            _evictions(arms),
            _lateness_curves(arms, lateness_limit_s),
        ]
    return [chart for chart in drawn if chart is not None]


def _ttft_curves(arms: Arms) -> Chart | None:
    """Draw how many turns had their first token within what time."""
    canvas = Canvas("ttft")
    if not _draw_curves(canvas, {name: view.ttft for name, view in arms.items()}):
        return None
    canvas.y_share("turns with a first token")
    canvas.x_seconds("time to first token")
    return canvas.chart(
        "Time to first token",
        "Each curve says which share of all turns had its first token within the time below it. "
        "Further left is faster. A curve that ends below 100 % has failed turns.",
        words.ttft(arms),
    )


def _lateness_curves(arms: Arms, limit_s: float) -> Chart | None:
    """Draw how many turns were sent within what time of when they were due."""
    canvas = Canvas("lateness")
    if not _draw_curves(canvas, {n: v.lateness for n, v in arms.items()}, _SHORTEST_S):
        return None
    canvas.axes.axvline(limit_s, color=INK, linewidth=1, linestyle=(0, (4, 3)))
    canvas.axes.annotate(
        "limit", (limit_s, 0.04), xycoords=("data", "axes fraction"),
        xytext=(-5, 0), textcoords="offset points", ha="right", color=MUTED,
    )  # fmt: skip
    canvas.y_share("turns sent")
    canvas.x_seconds("how late")
    return canvas.chart(
        "Was the load generator on time?",
        "Which share of the turns was sent within the time below of the moment it was due. A "
        "generator whose p99 is right of the limit measures itself, and the run is not valid.",
        words.lateness(arms, limit_s),
    )


def _ttft_by_turn(arms: Arms) -> Chart | None:
    """Draw the TTFT along the turns of a session, with a band for the spread."""
    if not any(len(view.by_turn.at) > 1 for view in arms.values()):
        return None
    canvas = Canvas("turns")
    tops = [
        s[np.isfinite(s)] for v in arms.values() for s in (v.by_turn.ttft_high, v.by_turn.ttft_mid)
    ]
    finite = np.concatenate(tops)
    if not len(finite):
        return None
    roof = float(finite.max()) * 1.3  # where a band with failures in it is cut off
    for number, view in enumerate(arms.values()):
        series = view.by_turn
        shown = np.isfinite(series.ttft_low)
        canvas.axes.fill_between(
            series.at[shown],
            series.ttft_low[shown],
            np.minimum(series.ttft_high[shown], roof),
            color=colour(number), alpha=0.13, linewidth=0,
        )  # fmt: skip
        _draw_line(
            canvas,
            series.at,
            np.where(np.isfinite(series.ttft_mid), series.ttft_mid, np.nan),
            number,
        )
    canvas.y_seconds("time to first token")
    canvas.x_numbers("turn of the session")
    _whole_ticks(canvas)
    return canvas.chart(
        "Time to first token, turn by turn",
        "The line is the median, the band holds 90 of 100 turns and ends at the chart's edge where "
        "the slowest of them failed. A conversation grows with every turn: where its history is "
        "cached the line stays low, where it is not the line climbs." + _cut(arms),
        words.ttft_by_turn(arms),
    )


def _hit_rate_over_time(arms: Arms) -> Chart | None:
    """Draw the hit rate along the run, with the ceiling of the turns of each moment."""
    canvas = Canvas("time")
    if not _draw_hit_rates(canvas, arms, lambda view: view.by_time, each=True):
        return None
    canvas.x_moments("time in the run")
    return canvas.chart(
        "Hit rate over time",
        "Which share of the prompt tokens was found in a cache. The dashed line is the ceiling: "
        "what one endless cache would have found. The gap is what placement and eviction cost.",
        words.hit_rate(arms),
        ceiling=True,
    )


def _hit_rate_by_turn(arms: Arms) -> Chart | None:
    """Draw the hit rate along the turns of a session, with the ceiling."""
    if not any(len(view.by_turn.at) > 1 for view in arms.values()):
        return None
    canvas = Canvas("hits")
    if not _draw_hit_rates(canvas, arms, lambda view: view.by_turn):
        return None
    canvas.x_numbers("turn of the session")
    _whole_ticks(canvas)
    return canvas.chart(
        "Hit rate, turn by turn",
        "A first turn can only share what its group has in common; later turns can also find "
        "their own history, if they land where it is." + _cut(arms),
        words.hit_rate_by_turn(arms),
        ceiling=True,
    )


def _pod_traffic(arms: Arms) -> Chart | None:
    """Draw each pod's share of turns and of uncached tokens, one pair of bars per arm."""
    shown = {name: view for name, view in arms.items() if any(p.turns for p in view.summary.pods)}
    if not shown:
        return None
    canvas = Canvas("pods", height=0.75 + 0.72 * len(shown))
    axes = canvas.axes
    places: list[float] = []
    numbers = {name: number for number, name in enumerate(arms)}
    for place, (name, view) in enumerate(shown.items()):
        for offset, measure in ((-0.19, _turns), (0.19, _uncached)):
            _draw_shares(canvas, place + offset, view.summary.pods, measure, numbers[name])
            places.append(place + offset)
    axes.set_yticks(places, ["turns", "uncached"] * len(shown))
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0 %", "25 %", "50 %", "75 %", "100 %"])
    axes.grid(visible=False)
    axes.spines["left"].set_visible(False)
    return canvas.chart(
        "Where the traffic went",
        "Each bar is the whole traffic of an arm, cut into its pods, the busiest first: above by "
        "turns, below by the prompt tokens that had to be computed. Even pieces are good balance.",
        words.traffic(shown),
    )


def _ttft_by_uncached(arms: Arms) -> Chart | None:
    """Draw the TTFT of single turns against the prompt tokens that were not cached."""
    if not any(len(view.uncached) for view in arms.values()):
        return None
    canvas = Canvas("uncached")
    for number, view in enumerate(arms.values()):
        canvas.axes.plot(
            view.uncached, np.maximum(view.uncached_ttft_s, 1e-6), color=colour(number),
            linestyle="none", marker="o", markersize=2.6, alpha=0.4, markeredgewidth=0,
        )  # fmt: skip
    canvas.y_seconds("time to first token")
    canvas.x_numbers("prompt tokens not cached")
    canvas.axes.set_xlim(left=0)
    return canvas.chart(
        "What an uncached token costs",
        "Each dot is one answered turn (a sample of at most 1,000 per arm). Dots that rise to the "
        "right are prefill; dots high above the others waited in a queue.",
        words.uncached(arms),
    )


def _ttft_by_hit_share(arms: Arms) -> Chart | None:
    """Draw the TTFT along the share of the prompt that was cached, with a band for the spread."""
    if not any(len(view.by_hit_share.at) > 1 for view in arms.values()):
        return None
    canvas = Canvas("shares")
    for number, view in enumerate(arms.values()):
        series = view.by_hit_share
        canvas.axes.fill_between(
            series.at, series.ttft_low, series.ttft_high,
            color=colour(number), alpha=0.13, linewidth=0,
        )  # fmt: skip
        _draw_line(canvas, series.at, series.ttft_mid, number)
    canvas.y_seconds("time to first token")
    canvas.x_share("share of the prompt that was cached")
    return canvas.chart(
        "Time to first token by what was cached",
        "Answered turns by the tenth of their prompt that was found in a cache. The line is the "
        "median, the band holds 90 of 100 turns. How steeply it falls is what a hit is worth; a "
        "line that does not fall says that something else than prefill takes the time.",
        words.ttft_by_hit_share(arms),
    )


def _kv_usage(arms: Arms) -> Chart | None:
    """Draw the fullest pod's KV usage along the run, with a band down to the emptiest."""
    if not any(np.isfinite(view.memory.fullest).sum() > 2 for view in arms.values()):
        return None
    canvas = Canvas("memory")
    for number, view in enumerate(arms.values()):
        memory = view.memory
        canvas.axes.fill_between(
            memory.at, memory.emptiest, memory.fullest,
            color=colour(number), alpha=0.13, linewidth=0,
        )  # fmt: skip
        canvas.axes.plot(
            memory.at, memory.fullest, color=colour(number), linestyle=line_style(number)
        )
    canvas.y_share("KV blocks in use")
    canvas.x_moments("time in the run")
    return canvas.chart(
        "KV cache in use",
        "Blocks that running requests hold, as the pods report them every second. The line is the "
        "fullest pod, the band reaches down to the emptiest. Near 100 % requests wait, or lose "
        "their blocks. Cached prefixes that nobody uses count as free.",
        words.kv_usage(arms),
    )


def _evictions(arms: Arms) -> Chart | None:
    """Draw how many cached blocks were given up, along the run."""
    if not any(len(view.memory.evictions) > 2 for view in arms.values()):
        return None
    canvas = Canvas("evictions")
    for number, view in enumerate(arms.values()):
        memory = view.memory
        canvas.axes.plot(
            memory.evictions_at, memory.evictions, color=colour(number),
            linestyle=line_style(number),
        )  # fmt: skip
    canvas.y_numbers("blocks per second")
    canvas.axes.set_ylim(bottom=0)
    canvas.x_moments("time in the run")
    return canvas.chart(
        "Evictions",
        "Cached blocks that were given up to make room, over all pods. As long as nothing is "
        "evicted, every miss is one of placement; once the caches are full, some are of memory.",
        words.evictions(arms),
    )


def _draw_curves(canvas: Canvas, curves: Mapping[str, Curve], shortest: float = 1e-6) -> bool:
    """Draw cumulative distributions as steps; return whether there was one."""
    for number, curve in enumerate(curves.values()):
        if len(curve.seconds):
            seconds = np.maximum(curve.seconds, shortest)
            canvas.axes.step(
                [seconds[0], *seconds], [0, *curve.share], where="post",
                color=colour(number), linestyle=line_style(number),
            )  # fmt: skip
    return any(len(curve.seconds) for curve in curves.values())


def _draw_line(canvas: Canvas, x: NDArray[np.float64], y: NDArray[np.float64], number: int) -> None:
    few = np.isfinite(y).sum() <= 12
    canvas.axes.plot(
        x, y, color=colour(number), linestyle=line_style(number),
        marker="o" if few else None, markersize=4,
    )  # fmt: skip


def _draw_hit_rates(
    canvas: Canvas, arms: Arms, series: Callable[[RunView], Series], *, each: bool = False
) -> bool:
    """Draw hit rates and their ceilings; return whether any hit rate is known.

    One plan has one ceiling along its turns; along time it has not, since a slower arm sends the
    same turns later: there `each` arm has its own.
    """
    rates = {n: c for n, v in enumerate(arms.values()) if (c := v.summary.hits.ceiling) is not None}
    one = bool(rates) and max(rates.values()) - min(rates.values()) < 0.005
    one = one and (not each or len(arms) == 1)
    for number in list(rates)[:1] if one else rates:
        values = series(list(arms.values())[number])
        canvas.axes.plot(
            values.at, values.ceiling, color=INK if one else colour(number),
            linewidth=1.1, linestyle=(0, (4, 3)),
        )  # fmt: skip
    for number, view in enumerate(arms.values()):
        _draw_line(canvas, series(view).at, series(view).hit_rate, number)
    canvas.y_share("prompt tokens cached")
    return any(np.isfinite(series(view).hit_rate).any() for view in arms.values())


def _turns(pod: PodTraffic) -> int:
    return pod.turns


def _uncached(pod: PodTraffic) -> int:
    return pod.uncached_tokens


def _draw_shares(
    canvas: Canvas,
    place: float,
    pods: tuple[PodTraffic, ...],
    measure: Callable[[PodTraffic], int],
    number: int,
) -> None:
    """Draw one bar of pods, the busiest first and darkest; label the pieces that have room."""
    whole = sum(map(measure, pods))
    left = 0.0
    for rank, pod in enumerate(sorted(pods, key=lambda pod: pod.turns, reverse=True)):
        share = measure(pod) / whole if whole else 0.0
        canvas.axes.barh(
            place, share, left=left, height=0.34, color=colour(number),
            alpha=0.55 if rank == 0 else 0.3 if rank % 2 else 0.18, linewidth=0,
        )  # fmt: skip
        text = f"{100 * share:.0f} %"
        if share >= 0.2 and rank == 0:
            _, colon, port = pod.pod.rpartition(":")
            text = f"{printable(colon + port, 14)}  {text}"
        if share >= 0.07:
            canvas.axes.text(left + share / 2, place, text, ha="center", va="center", fontsize=8)
        left += share
    if not whole:
        canvas.axes.text(0.01, place, "unknown", va="center", fontsize=8, color=MUTED)


def _whole_ticks(canvas: Canvas) -> None:
    low, high = canvas.axes.get_xlim()
    step = max(1, math.ceil((high - low) / 8))
    first, last = max(1, math.ceil(low)), math.floor(high)
    canvas.axes.set_xticks([turn for turn in range(first, last + 1) if (turn - 1) % step == 0])


def _cut(arms: Arms) -> str:
    last = max(view.last_turn for view in arms.values())
    return (
        f" Turns after the {TURNS_SHOWN}th (up to {last}) are not shown."
        if last > TURNS_SHOWN
        else ""
    )
