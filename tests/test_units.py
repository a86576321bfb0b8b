"""Quantities at the edge: sizes in bytes, durations."""

import pytest

from kvbench.units import format_bytes, format_number, format_seconds, parse_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [("80GiB", 80 * 2**30), ("24 GB", 24 * 10**9), ("1.5mib", 3 * 2**19), ("42", 42)],
)
def test_a_size_is_bytes_with_or_without_a_unit(text, size):
    """GB are powers of ten, GiB powers of two."""
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1", "3 bits", "1e9"])
def test_what_is_no_size_is_refused(text):
    """The message shows what would be one."""
    with pytest.raises(ValueError, match='expected a size such as "80GiB"'):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (576, "576 B"),
        (128 * 1024, "128 KiB"),
        (70272, "68.6 KiB"),
        (2**30, "1.00 GiB"),
        (-(2**31), "-2.00 GiB"),
    ],
)
def test_a_size_is_shown_in_the_largest_unit_that_it_fills(size, text):
    """Whole numbers stay whole, gibibytes have two digits."""
    assert format_bytes(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.00087, "870 µs"), (0.0431, "43.1 ms"), (2.06, "2.06 s"), (250, "4m 10s"), (0.0, "0 µs"),
     (-0.331, "-331 ms"), (-300, "-5m 00s"), (float("inf"), "∞"), (float("nan"), "–")],
)  # fmt: skip
def test_a_duration_is_shown_in_three_digits(seconds, text):
    """Less than nothing, as the lower end of an interval may be, as the same with a sign."""
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"), [(-0.0, "0"), (-0.25, "-0.25"), (12043.4, "12,043"), (None, "–")]
)
def test_numbers_are_written_in_three_digits_and_zero_without_a_sign(value, text):
    """All digits before the point."""
    assert format_number(value) == text
