import math
from xml.etree import ElementTree as ET

import pytest
from pages import Page

from kvbench.errors import InputError
from kvbench.report.ladder import LadderView, Line, build_ladder, knee_words

inf = math.inf


def _line(arm, values, knee=(2.0, 1.5, 2.5), reason=None):
    return Line(
        arm, (1.0, 2.0, 4.0), values, tuple(0.9 * v for v in values),
        tuple(1.1 * v for v in values), *knee, reason,
    )  # fmt: skip


def _view(*lines):
    return LadderView(
        "chat", (("Objective", "ttft p95 < 500ms"),), "ttft p95 < 500ms", "ttft p95",
        seconds=True, limit=0.5, seeds=3, lines=lines,
    )  # fmt: skip


def test_the_page_has_the_figure_the_knees_and_every_step(tmp_path):
    """A line each, in words and numbers; names are no markup."""
    lines = (
        _line("round_robin", (0.2, 0.6, 1.4)),
        _line("<b>evil", (0.1, 0.2, inf), (inf, 3, inf)),
    )
    page = Page(build_ladder(_view(*lines), tmp_path / "l.html").read_text())
    assert "2/s 1.5/s to 2.5/s" in page.text
    assert "beyond 4/s 3/s to beyond the highest" in page.text
    assert page.tables == [[
        ["sessions per second", "1", "2", "4"],
        ["round_robin", "200 ms", "600 ms", "1.4 s"],
        ["<b>evil", "100 ms", "200 ms", "∞"],
    ]]  # fmt: skip
    assert "b" not in page.tags
    assert page.tags.count("svg") == 1
    assert "script" not in page.tags


def test_the_figure_is_a_file_of_its_own(tmp_path):
    """Well-formed, with its colours in it, referring to nothing."""
    build_ladder(_view(_line("a", (0.2, 0.6, 1.4))), tmp_path / "l.html")
    source = (tmp_path / "l.svg").read_text()
    assert ET.fromstring(source).tag == "{http://www.w3.org/2000/svg}svg"
    assert "var(" not in source
    assert "#0b6bb8" in source
    assert "http" not in source.replace("http://www.w3.org/", "")


def test_a_run_that_may_not_be_judged_is_said_first(tmp_path):
    """Before any knee."""
    line = _line("a", (0.2, 0.6, 1.4), reason="the load generator was late")
    page = Page(build_ladder(_view(line), tmp_path / "l.html").read_text())
    assert page.text.index("the load generator was late") < page.text.index("highest rate")


@pytest.mark.parametrize(
    ("knee", "words"),
    [
        ((2.0, 1.5, 2.5), ("2/s", "1.5/s to 2.5/s")),
        ((-inf, -inf, 1.2), ("below 1/s", "below the lowest to 1.2/s")),
        ((-inf, -inf, -inf), ("below 1/s", "it is missed at every rate, for certain")),
        ((inf, inf, inf), ("beyond 4/s", "it is met at every rate, for certain")),
    ],
)
def test_a_knee_in_words(knee, words):
    """What lies outside the rates is not guessed."""
    assert knee_words(_line("a", (0.1, 0.2, 0.3), knee)) == words


def test_a_page_that_cannot_be_written_is_an_input_error(tmp_path):
    """With the flag that helps."""
    with pytest.raises(InputError, match="cannot write the ladder") as caught:
        build_ladder(_view(_line("a", (0.1, 0.2, 0.3))), tmp_path / "no" / "l.html")
    assert "--out" in caught.value.hint
