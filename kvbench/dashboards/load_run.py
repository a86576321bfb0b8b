"""A load run: is it valid, what was sent, and what came back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvbench.dashboards.panel import (
    BLUE,
    GREEN,
    GREY,
    RED,
    YELLOW,
    Board,
    Panel,
    Query,
    Row,
    number,
)
from kvbench.dashboards.queries import QUANTILES, WINDOW
from kvbench.metrics import load
from kvbench.metrics.promql import bound, gauge, rate, ratio, selector, total

if TYPE_CHECKING:
    from kvbench.metrics.metric import Metric

WELL = 'outcome="ok"'
CHOSEN = "and on (job, instance) " + selector(load.RUN, 'run=~"$run"')
"""Keeps series of the chosen runs: a run's counters do not carry its name."""


def _sum(metric: Metric, matchers: str = "", part: str = "", by: str = "") -> str:
    """Return a rate of the chosen runs: counters of a run carry no name of it."""
    return total(f"{rate(metric, WINDOW, matchers, part)} {CHOSEN}", by)


def _level(metric: Metric, by: str = "") -> str:
    """Return a gauge of the chosen runs."""
    return total(f"{gauge(metric)} {CHOSEN}", by)


def _percentile(share: float, metric: Metric) -> str:
    """Return a percentile of the chosen runs."""
    return f"histogram_quantile({share:g}, {_sum(metric, part='bucket', by='le')}) >= 0"


def _percentiles(metric: Metric) -> tuple[Query, ...]:
    """Return the percentiles that latencies are shown at."""
    return tuple(
        Query(_percentile(share, metric), f"p{share * 100:g}", colour)
        for share, colour in QUANTILES
    )


def _hit_rate() -> str:
    """Return the share of prompt tokens that was cached."""
    return ratio(_sum(load.CACHED_TOKENS), _sum(load.PROMPT_TOKENS))


def _ceiling() -> str:
    """Return what one endless cache would have had, of the plan's tokens: pods count others."""
    return ratio(_sum(load.CEILING_TOKENS), _sum(load.PLANNED_TOKENS))


def board(late_s: float) -> Board:
    """Return the board; `late_s` is how late the 99th of 100 turns may be."""
    return Board(
        "Load run",
        "Is the run valid, what does it send, and what comes back?",
        (
            Row("", _numbers(late_s)),
            Row("Is it valid", (_rates(), _lateness(), _generator(), _outcomes())),
            Row("What comes back", (_ttft(), _itl(), _hits())),
            Row("Where it goes", (_turns(), _in_flight(), _tokens())),
            Row("Are the answers any good", (_degenerate(), _by_context())),
        ),
        variables=("run",),
    )


def _numbers(late_s: float) -> tuple[Panel, ...]:
    """Return progress, punctuality, and the numbers of a run's table."""
    filed = total(f"{selector(load.FILED_TURNS)} {CHOSEN}")
    punctual = _sum(load.LATENESS, bound(late_s), "bucket")
    return (
        number(
            "Done",
            "Share of the plan's turns that have their row.",
            "percentunit",
            ratio(filed, _level(load.PLANNED_TURNS)),
            needs="load",
            idle="no run",
        ),
        number(
            "Late turns",
            f"Share of turns sent over {late_s:g} s later than planned. Over 1 % the run is not "
            "valid: the generator measures itself.",
            "percentunit",
            f"1 - {ratio(punctual, _sum(load.LATENESS, part='count'))}",
            needs="load",
            idle="no run",
            steps=((None, GREEN), (0.005, YELLOW), (0.01, RED)),
        ),
        number(
            "Turns that failed",
            "Share of turns that ended otherwise than well.",
            "percentunit",
            f"1 - {ratio(_sum(load.FILED_TURNS, WELL), _sum(load.FILED_TURNS))}",
            needs="load",
            idle="no run",
            steps=((None, GREEN), (0.001, YELLOW), (0.01, RED)),
        ),
        number(
            "TTFT p95",
            "From the actual send to the first token.",
            "s",
            _percentile(0.95, load.TTFT),
            needs="load",
            idle="no run",
        ),
        number(
            "Hit rate",
            "Share of prompt tokens that pods had cached.",
            "percentunit",
            _hit_rate(),
            needs="load",
            idle="no run",
        ),
        number(
            "Of its ceiling",
            "Hit rate over the one that one endless cache would have had.",
            "percentunit",
            ratio(_hit_rate(), _ceiling()),
            needs="load",
            idle="no run",
            steps=((None, RED), (0.7, YELLOW), (0.9, GREEN)),
        ),
    )


def _rates() -> Panel:
    return Panel(
        "Intended and achieved rate",
        "Turns per second whose time has come, and those that were sent. Where the second falls "
        "behind, turns are held back and the load is not the one that was planned.",
        "reqps",
        (
            Query(_sum(load.DUE_TURNS), "intended", GREY, dashed=True),
            Query(_sum(load.BEGUN_TURNS), "achieved", GREEN),
        ),
        width=6,
        needs="load",
        idle="no run",
    )


def _lateness() -> Panel:
    return Panel(
        "Lateness",
        "How much later than planned turns were sent. p99 over 0.1 s makes the run invalid.",
        "s",
        _percentiles(load.LATENESS),
        width=6,
        needs="load",
        idle="no run",
        least=None,
        log=True,
    )


def _generator() -> Panel:
    return Panel(
        "The generator's own load",
        "CPU of each worker, as a share of a core, and the latest timer of the last second. A busy "
        "worker is a late one.",
        "percentunit",
        (Query(_sum(load.CPU, by="worker"), "CPU of worker {{worker}}"),),
        width=6,
        needs="load",
        idle="no run",
    )


def _outcomes() -> Panel:
    return Panel(
        "Turns by outcome",
        "Turns per second that got their row, by what became of them.",
        "reqps",
        (Query(f"{_sum(load.FILED_TURNS, by='outcome')} > 0", "{{outcome}}"),),
        kind="stack",
        width=6,
        needs="load",
        idle="no run",
    )


def _ttft() -> Panel:
    return Panel(
        "Time to first token",
        "From a turn's actual send to its first token of any kind. Turns that failed are not in "
        "it: see the outcomes.",
        "s",
        _percentiles(load.TTFT),
        needs="load",
        idle="no run",
    )


def _itl() -> Panel:
    return Panel(
        "Time between chunks",
        "Between the arrivals of two chunks of an answer.",
        "s",
        _percentiles(load.ITL),
        needs="load",
        idle="no run",
    )


def _hits() -> Panel:
    return Panel(
        "Hit rate and its ceiling",
        "Share of prompt tokens that pods had cached, and of those that were planned, what one "
        "endless cache would have had.",
        "percentunit",
        (
            Query(_hit_rate(), "found", GREEN),
            Query(_ceiling(), "ceiling", GREY, dashed=True),
        ),
        needs="load",
        idle="no run",
        most=1,
    )


def _turns() -> Panel:
    return Panel(
        "Turns by pod",
        "Turns per second, by the pod that answered.",
        "reqps",
        (Query(_sum(load.SENT_TURNS, by="pod"), "{{pod}}"),),
        kind="stack",
        needs="load",
        idle="no run",
    )


def _in_flight() -> Panel:
    return Panel(
        "In flight",
        "Turns sent and not yet ended.",
        "short",
        (Query(_level(load.IN_FLIGHT), "turns", BLUE),),
        needs="load",
        idle="no run",
    )


def _degenerate() -> Panel:
    kinds = f"{_sum(load.DEGENERATE, by='kind')} / on () group_left () ({_sum(load.JUDGED)} > 0)"
    return Panel(
        "Degenerate answers",
        "Share of judged answers that loop, are salad, echo their prompt, say nothing, or were cut "
        "by the window. Compare with a run of short contexts: suspicions, not verdicts.",
        "percentunit",
        (Query(kinds, "{{kind}}"),),
        width=12,
        needs="load",
        idle="none",
        quiet=True,
    )


def _by_context() -> Panel:
    return Panel(
        "Degenerate answers by context",
        "The same share by how much of the window (in percent) prompt and answer took. Quality "
        "that falls towards the window shows as a line that rises.",
        "percentunit",
        (
            Query(
                ratio(_sum(load.DEGENERATE, by="context"), _sum(load.JUDGED, by="context")),
                "{{context}} %",
            ),
        ),
        width=12,
        needs="load",
        idle="none",
        quiet=True,
    )


def _tokens() -> Panel:
    return Panel(
        "Tokens per second",
        "Prompt tokens cached and computed, and tokens generated.",
        "short",
        (
            Query(_sum(load.CACHED_TOKENS), "prompt, cached", GREEN),
            Query(
                f"{_sum(load.PROMPT_TOKENS)} - {_sum(load.CACHED_TOKENS)}",
                "prompt, computed",
                BLUE,
            ),
            Query(_sum(load.COMPLETION_TOKENS), "generated", GREY),
        ),
        kind="stack",
        needs="load",
        idle="no run",
    )
