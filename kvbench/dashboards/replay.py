"""Every query of every panel, asked of a real Prometheus: does it answer, and with numbers only?

Grafana's part is small and is done here: variables are replaced, a range is asked for what has a
past and the present for the rest, legends are filled in. A query without a fault returns series of
finite numbers. None at all is a fault unless nothing is good news (`Panel.quiet`) or the part whose
metrics it needs is not running; NaN and infinity are always one.
"""

from __future__ import annotations

import http.client
import json
import math
import re
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvbench.errors import TargetError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kvbench.alerts.rule import Needs
    from kvbench.dashboards.panel import Board, Panel, Query

TIMEOUT_S = 30.0
"""How long Prometheus may take for one query."""


@dataclass(frozen=True, slots=True)
class Span:
    """What is shown: from, to and step in seconds since the epoch, and the window of rates."""

    start: float
    end: float
    step: float
    rate_window: str


@dataclass(frozen=True, slots=True)
class Series:
    """One series of an answer: its name, its labels, and (time, value) pairs."""

    name: str
    labels: Mapping[str, str]
    points: tuple[tuple[float, float], ...]

    @property
    def latest(self) -> float:
        """The newest value."""
        return self.points[-1][1]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a panel got: the series of each query, in order, and what is wrong with them."""

    panel: Panel
    series: tuple[tuple[Series, ...], ...]
    faults: tuple[str, ...]

    @property
    def empty(self) -> bool:
        """Whether there is nothing to draw."""
        return not any(self.series)


class Prometheus:
    """Prometheus's HTTP API, as far as panels need it.

    Args:
        url: Where it answers: "http://127.0.0.1:9090".
    """

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")

    def ask(self, query: Query, panel: Panel, span: Span) -> tuple[Series, ...]:
        """Return the series that a query gives.

        Raises:
            TargetError: No Prometheus answers, or it refuses the query; with what it says.
        """
        expression = filled(query.expression, span)
        if panel.kind in {"table", "bars"}:
            path, values = "query", {"query": expression, "time": f"{span.end:.3f}"}
        else:
            path = "query_range"
            values = {
                "query": expression,
                "start": f"{span.start:.3f}",
                "end": f"{span.end:.3f}",
                "step": f"{span.step:g}",
            }
        return tuple(
            Series(legend(query.legend, labels), labels, points)
            for labels, points in self._get(path, values)
        )

    def _get(
        self, path: str, values: Mapping[str, str]
    ) -> list[tuple[dict[str, str], tuple[tuple[float, float], ...]]]:
        """Return labels and points of each series."""
        url = f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(values)}"
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:  # noqa: S310 - the user's own URL
                document = json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                said = _refusal(error.read())
            if said is None:
                raise self._none(f"{error.code} {error.reason}") from None
            raise TargetError(f"{self._url}: {said}: {values['query']}") from None
        except (OSError, http.client.HTTPException) as error:
            raise self._none(str(getattr(error, "reason", error))) from None
        except ValueError:
            raise self._none("no JSON") from None
        try:
            return [
                (
                    one["metric"],
                    tuple((float(at), float(v)) for at, v in one.get("values") or [one["value"]]),
                )
                for one in document["data"]["result"]
            ]
        except (KeyError, TypeError, ValueError, AttributeError):
            raise self._none("other JSON") from None

    def _none(self, got: str) -> TargetError:
        """Return the error for what is no Prometheus."""
        return TargetError(f"{self._url}: expected Prometheus, got {got}", hint="--prometheus URL")


def _refusal(body: bytes) -> str | None:
    """Return the words in which a Prometheus refuses a query; None if it is none."""
    try:
        said = json.loads(body)["error"]
    except (KeyError, TypeError, ValueError):
        return None
    return said if isinstance(said, str) else None


def filled(expression: str, span: Span) -> str:
    """Return an expression with Grafana's variables replaced: everything is chosen."""
    text = expression.replace("$__rate_interval", span.rate_window)
    return re.sub(r'"\$[a-z]\w*"', '".*"', text)


def legend(template: str, labels: Mapping[str, str]) -> str:
    """Return a series' name: `{{label}}` replaced, absent labels by nothing."""
    return re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda match: labels.get(match[1], ""), template)


def answer(panel: Panel, prometheus: Prometheus, span: Span, running: Iterable[Needs]) -> Answer:
    """Ask all queries of a panel.

    Args:
        panel: Whose.
        prometheus: Whom.
        span: What is shown.
        running: Parts that are scraped: only of these is silence a fault.
    """
    got: list[tuple[Series, ...]] = []
    faults: list[str] = []
    for query in panel.queries:
        try:
            series = prometheus.ask(query, panel, span)
        except TargetError as error:
            if "expected Prometheus" in error.message:
                raise
            faults.append(error.message)
            series = ()
        bad = sum(not math.isfinite(v) for one in series for _, v in one.points)
        if bad:
            faults.append(f"{bad} values are no numbers: {filled(query.expression, span)}")
        got.append(series)
    if not any(got) and not faults and not panel.quiet and panel.needs in set(running):
        faults.append("no data")
    return Answer(panel, tuple(got), tuple(faults))


def replay(
    board: Board, prometheus: Prometheus, span: Span, running: Iterable[Needs]
) -> list[Answer]:
    """Ask all queries of a board's panels.

    Raises:
        TargetError: No Prometheus answers.
    """
    return [answer(panel, prometheus, span, running) for panel in board.panels]
