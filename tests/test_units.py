import math

import pytest

from kvbench.units import format_number, format_seconds, format_share, parse_seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("250ms", 0.25),
        ("2s", 2.0),
        ("1.5m", 90.0),
        ("1 h", 3600.0),
        ("7", 7.0),
        (7, 7.0),
        ("5us", 5e-6),
    ],
)
def test_a_duration_is_a_number_and_a_unit(text, seconds):
    """A bare number is seconds."""
    assert parse_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "fast", "2 weeks", "-1s", "1s2"])
def test_what_is_no_duration_is_refused_with_the_accepted_forms(text):
    """The message shows how it is written."""
    with pytest.raises(
        ValueError, match=r'expected a duration such as "250ms", "2s" or "1\.5m", got'
    ):
        parse_seconds(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.00087, "870 µs"), (0.0431, "43.1 ms"), (0.9997, "1.00 s"), (2.061, "2.06 s"),
        (250, "4m 10s"), (math.inf, "∞"), (math.nan, "–"),
    ],
)  # fmt: skip
def test_a_duration_is_shown_with_three_digits_and_its_unit(seconds, text):
    """Infinite and unknown have signs of their own."""
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"), (7, "7"), (12043, "12,043"), (81.648, "81.6"), (0.04213, "0.0421"),
        (1234.5678, "1,235"), (math.inf, "∞"), (math.nan, "–"), (None, "–"),
    ],
)  # fmt: skip
def test_a_number_is_shown_with_three_digits_or_all_before_the_point(value, text):
    """Counts are never rounded."""
    assert format_number(value) == text


def test_a_share_is_shown_with_one_decimal_and_an_unknown_one_as_a_dash():
    """Unknown is not 0 %."""
    assert [format_share(share) for share in (0, 0.8317, 1, None)] == [
        "0.0 %",
        "83.2 %",
        "100.0 %",
        "–",
    ]
