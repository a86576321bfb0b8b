import pytest

from kvbench.report.canvas import INK, Canvas, colour, drawing, line_style, printable


def _svg(draw, key="k", description="A chart.") -> str:
    with drawing():
        canvas = Canvas(key)
        draw(canvas)
        return canvas.svg(description)


def test_text_in_a_chart_is_neither_mathematics_nor_markup():
    """A pod may be called anything."""
    svg = _svg(lambda canvas: canvas.axes.text(0, 0, r"$\frac{</svg><script>", color=INK))

    assert r"$\frac{&lt;/svg&gt;&lt;script&gt;" in svg
    assert "<script" not in svg


def test_the_description_is_an_attribute_and_stays_one():
    """Quotes and angle brackets in it are escaped."""
    assert 'aria-label="a &quot;b&quot; &lt;i&gt; &amp; c"' in _svg(
        lambda _: None, description='a "b" <i> & c'
    ).replace("i>", "i&gt;")


def test_ids_carry_the_charts_key_and_nothing_styles_the_page():
    """Two charts in a page do not meet."""
    svg = _svg(lambda canvas: canvas.axes.plot([0, 1], [0, 1], color=colour(0)), key="left")

    assert 'id="left-' in svg
    assert "url(#left-" in svg
    assert "<style" not in svg
    assert "http" not in svg


def test_settings_hold_only_while_drawing():
    """Whoever else draws in this process is left alone."""
    import matplotlib as mpl

    before = mpl.rcParams["text.parse_math"], mpl.rcParams["svg.fonttype"]
    with drawing():
        assert (mpl.rcParams["text.parse_math"], mpl.rcParams["svg.fonttype"]) == (False, "none")

    assert (mpl.rcParams["text.parse_math"], mpl.rcParams["svg.fonttype"]) == before


@pytest.mark.parametrize(
    ("seconds", "ticks"),
    [
        pytest.param([0.1, 0.9], ["100 ms", "200 ms", "500 ms"], id="less than two decades"),
        pytest.param([1e-5, 10], ["10 µs", "1 ms", "100 ms", "10 s"], id="six decades"),
    ],
)
def test_ticks_of_durations_carry_their_unit(seconds, ticks):
    """A reader never has to count zeros."""

    def draw(canvas):
        canvas.axes.plot(seconds, [0, 1])
        canvas.x_seconds("t")

    svg = _svg(draw)

    for tick in ticks:
        assert f">{tick}</text>" in svg


@pytest.mark.parametrize(
    ("end", "ticks"),
    [
        pytest.param(57, ["0 s", "10 s", "50 s"], id="seconds"),
        pytest.param(3000, ["0 min", "10 min", "40 min"], id="minutes"),
        pytest.param(10**6, ["0 min"], id="days"),
    ],
)
def test_moments_of_a_run_are_in_seconds_or_minutes(end, ticks):
    """Few enough that they do not touch."""

    def draw(canvas):
        canvas.axes.plot([0, end], [0, 1])
        canvas.x_moments("t")

    svg = _svg(draw)

    for tick in ticks:
        assert f">{tick}</text>" in svg


def test_labels_are_short_and_of_letters_that_the_font_has():
    """Control characters, direction marks and scripts without glyphs become question marks."""
    assert printable("pod-0") == "pod-0"
    assert printable("a\x00b\u202ec漢") == "a?b?c?"
    assert printable("x" * 30, 10) == "x" * 9 + "…"


def test_the_eighth_arm_has_the_first_colour_and_another_line():
    """Seven colours, then the line style tells them apart."""
    assert colour(7) == colour(0) != colour(1)
    assert [line_style(number) for number in (0, 6, 7, 14)] == [
        "solid",
        "solid",
        "dashed",
        "dotted",
    ]
