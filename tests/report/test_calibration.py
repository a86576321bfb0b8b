"""The picture of a calibration is a file of the kind that was asked for."""

import pytest

from kvbench.errors import InputError
from kvbench.report.calibration import draw

SEEN = [(0.01, 0.011), (0.1, 0.09), (1.0, 1.05)]
HELD_OUT = [(0.05, 0.052)]
GAPS = [(1, 32, 0.010, 0.0101), (16, 32, 0.011, 0.0111)]


@pytest.mark.parametrize(
    ("suffix", "magic"), [("svg", b"<?xml"), ("png", b"\x89PNG"), ("pdf", b"%PDF")]
)
def test_the_suffix_decides_the_format(suffix, magic, tmp_path):
    """And every one of them can be drawn without a screen."""
    path = tmp_path / f"plot.{suffix}"

    draw(path, "tiny", SEEN, HELD_OUT, GAPS)

    assert path.read_bytes().startswith(magic)


def test_the_same_data_gives_the_same_picture(tmp_path):
    """So that a committed one changes only when its numbers do."""
    for name in ("a.svg", "b.svg"):
        draw(tmp_path / name, "tiny", SEEN, HELD_OUT, GAPS)

    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_nothing_held_out_and_no_batches_is_still_a_picture(tmp_path):
    """It says that there is nothing to see."""
    draw(tmp_path / "bare.svg", "tiny", SEEN, [], [])

    assert (tmp_path / "bare.svg").stat().st_size > 1000


def test_an_unknown_format_and_a_place_that_cannot_be_written_are_refused(tmp_path):
    """With the formats that are known, and with the file."""
    with pytest.raises(InputError, match=r"ends in \.svg, \.png, \.pdf"):
        draw(tmp_path / "plot.gif", "tiny", SEEN, HELD_OUT, GAPS)
    with pytest.raises(InputError, match="cannot be written: No such file or directory"):
        draw(tmp_path / "missing" / "plot.svg", "tiny", SEEN, HELD_OUT, GAPS)
