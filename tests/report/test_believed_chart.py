"""The chart of predictions by cause, as it stands on the page."""

import re

import pytest
from fakes_records import row, written_run
from pages import Page

from kvbench.records.validity import Limits
from kvbench.report.believed_chart import predictions
from kvbench.report.canvas import drawing
from kvbench.report.page import build_report
from kvbench.report.view import name_arms, view_run

TOLD = [(96, 96, "none")] * 5 + [(96, 32, "evicted"), (0, 64, "late"), (96, 80, None)]


def turns(policy="prefix_cost", told=TOLD):
    """Return turns with these predictions, deliveries and causes."""
    return [
        row(
            n, predicted_tokens=predicted, cached_tokens=cached,
            prediction_cause=cause, policy=policy,
        )
        for n, (predicted, cached, cause) in enumerate(told)
    ]  # fmt: skip


BLIND = turns("round_robin", [(0, 96, "estimate")] * 4)
ALONE = turns(None, [(None, 96, None)] * 4)


@pytest.fixture
def drawn(tmp_path):
    """Return a function that draws runs by the name of their arm."""

    def draw(**runs):
        folders = [written_run(tmp_path, rows, arm=arm) for arm, rows in runs.items()]
        with drawing():
            return predictions(name_arms([view_run(folder, Limits()) for folder in folders]))

    return draw


def test_a_chart_has_a_mark_and_a_colour_for_each_cause(drawn):
    """Told apart without colours too; the legend has the counts, the caption the meaning."""
    (chart,) = drawn(a=turns())
    assert [(mark.glyph, mark.colour, mark.text) for mark in chart.marks] == [
        ("●", "var(--muted)", "as predicted (5)"),
        ("×", "var(--arm-1)", "evicted (1)"),
        ("▲", "var(--arm-0)", "late (1)"),
        ("★", "var(--ink)", "untold (1)"),
    ]
    assert chart.title == "Predicted against delivered"
    assert "Evicted: what was missing had been evicted since the decision." in chart.shows
    assert "Template" not in chart.shows
    for colour in ("--muted", "--arm-1", "--arm-0", "--ink"):
        assert f"var({colour})" in chart.svg
    assert not re.search(r"#[0-9a-fA-F]{6}|rgb\(", chart.svg)


def test_each_arm_that_predicts_has_its_chart_on_the_same_scale(drawn):
    """And it is said once which arms do not."""
    wide = [(9000, 9000, "none"), *TOLD]
    first, second = drawn(a=turns(), blind=BLIND, b=turns(told=wide), alone=ALONE)
    assert [first.key, second.key] == ["believed", "believed1"]
    assert second.title == "Predicted against delivered: b"
    ticks = [set(re.findall(r">([\d,]+)</text>", chart.svg)) for chart in (first, second)]
    assert ticks[0] == ticks[1] >= {"8,000"}
    assert [said.arm for said in first.findings] == ["a", "blind", "alone"]
    assert first.findings[1].text == "round_robin predicted no cached token."
    assert [said.arm for said in second.findings] == ["b"]


def test_a_run_without_predictions_has_no_chart_and_a_line_that_says_so(tmp_path, drawn):
    """An empty drawing would look like a router that knows nothing."""
    assert drawn(blind=BLIND, alone=ALONE) == []
    folder = written_run(tmp_path, ALONE)
    page = Page(build_report([folder.path], tmp_path / "r.html").read_text())
    assert "Predicted against delivered" not in page.text
    assert "Predictions Nobody predicted what would be cached: a pod, or another" in page.text


def test_the_page_shows_the_legend_of_causes_in_place_of_that_of_arms(tmp_path):
    """With several arms too; the run's facts say the same in a sentence."""
    folders = [written_run(tmp_path, turns(), arm=arm) for arm in ("a", "b")]
    page = Page(build_report([one.path for one in folders], tmp_path / "r.html").read_text())
    marks = [value for tag, name, value in page.attributes if (tag, name) == ("i", "style")]
    assert marks.count("color: var(--arm-1)") == 2
    assert page.text.count("as predicted (5) × evicted (1) ▲ late (1) ★ untold (1)") == 2
    assert "Predictions Right to a block in 62.5 % of 8 turns;" in page.text
