"""Dashboards as pictures."""

from __future__ import annotations

import math

import pytest

from kvbench.alerts.settings import Settings
from kvbench.dashboards.boards import boards
from kvbench.dashboards.picture import render, worded
from kvbench.dashboards.replay import Answer, Series, Span

SPAN = Span(1_700_000_000.0, 1_700_000_600.0, 10.0, "1m")


def filled_in(panel):
    """Return an answer with three series to each query, as a heat map's if it is one."""
    moments = [SPAN.start + 10 * n for n in range(61)]

    def one(query, number):
        """Return a series that waves."""
        labels = {"pod": f"10.0.0.{number}:8000", "instance": f"10.0.0.{number}:8000"}
        labels |= {"le": ["0.1", "1.0", "+Inf"][number], "alertname": f"KVBench{number}"}
        values = [1 + number + math.sin(n / 9) * 0.4 for n in range(61)]
        return Series(f"{query.legend} {number}", labels, tuple(zip(moments, values, strict=True)))

    return Answer(panel, tuple(tuple(one(q, n) for n in range(3)) for q in panel.queries), ())


@pytest.mark.parametrize("title", ["Fleet", "KV cache", "Latency"])
def test_a_board_is_drawn_with_data_and_without(title, tmp_path):
    """Every kind of panel; what is empty says so, what is wrong says what; files stay small."""
    from PIL import Image

    board = next(board for board in boards(Settings()) if board.title == title)
    empty = [Answer(panel, ((),) * len(panel.queries), ("no data",)) for panel in board.panels[-2:]]
    full = [filled_in(panel) for panel in board.panels[:-2]]
    render(board, [*full, *empty], SPAN, tmp_path / "board.png")

    with Image.open(tmp_path / "board.png") as picture:
        assert picture.size[0] == 1344
    assert 30_000 < (tmp_path / "board.png").stat().st_size < 200_000


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.8123, "percentunit", "81.2 %"),
        (1.0, "percentunit", "100 %"),
        (0.0431, "s", "43.1 ms"),
        (0.0, "s", "0 s"),
        (1_234_567, "short", "1.23 M"),
        (0.5, "reqps", "0.5/s"),
        (2**30, "bytes", "1.00 GiB"),
    ],
)
def test_a_value_is_written_in_its_unit(value, unit, text):
    """As Grafana would."""
    assert worded(value, unit) == text
