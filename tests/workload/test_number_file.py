"""Numbers out of files: one a line, or a column of a CSV."""

from __future__ import annotations

import pytest

from kvbench.errors import InputError
from kvbench.workload import number_file
from kvbench.workload.number_file import parse_number, read_numbers


def test_one_number_a_line(tmp_path):
    """Blank lines are passed over."""
    path = tmp_path / "n.txt"
    path.write_text("3\n\n 4.5 \n1e2\n")
    assert read_numbers(path) == (3, 4.5, 100)


def test_a_column_of_a_csv(tmp_path):
    """By its name, whatever stands beside it; time stamps become seconds."""
    path = tmp_path / "n.csv"
    path.write_text("TIMESTAMP,Tokens\n2023-11-16 18:15:46.6805900,374\n2023-11-16 18:15:47,12\n")
    assert read_numbers(path, "Tokens") == (374, 12)
    first, second = read_numbers(path, "TIMESTAMP")
    assert second - first == pytest.approx(0.31941, abs=1e-6)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("5", 5),
        ("1970-01-01T00:01:00Z", 60),
        ("1970-01-01 00:01:00", 60),
        ("x", None),
        ("nan", None),
        ("inf", None),
        ("", None),
    ],
)
def test_a_number_or_a_time_stamp(text, number):
    """Anything else is neither."""
    assert parse_number(text) == number


@pytest.mark.parametrize(
    ("content", "column", "says"),
    [
        ("3\nx\n", None, r"n.txt:2: expected a number or a time stamp, got 'x"),
        ("", None, r"n.txt: expected at least one number, got none"),
        ("a,b\n1,2\n", "c", r"n.txt:1: expected a column 'c', got a, b"),
        ("a,b\n1\n", "b", r"n.txt:2: expected a number"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path, content, column, says):
    """File, line, expectation."""
    path = tmp_path / "n.txt"
    path.write_text(content)
    with pytest.raises(InputError, match=says):
        read_numbers(path, column)


def test_files_that_cannot_be_read_are_input_errors(tmp_path, monkeypatch):
    """Missing, no text, without end."""
    with pytest.raises(InputError, match="cannot be read"):
        read_numbers(tmp_path / "none")
    path = tmp_path / "n.txt"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not a text file"):
        read_numbers(path)
    monkeypatch.setattr(number_file, "MOST_NUMBERS", 2)
    path.write_text("1\n2\n3\n")
    with pytest.raises(InputError, match="at most 2 numbers"):
        read_numbers(path)
