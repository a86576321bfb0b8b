"""A run from its plan to its report: what is decided on the way."""

from kvbench.errors import InputError
from kvbench.stack.run import _refusal


def full() -> None:
    """Write to a disk that is full."""
    raise InputError("report.html: no space left", hint="choose another file with --out")


def test_a_disk_that_is_full_at_the_end_costs_the_page_and_not_the_run():
    """The table is told all the same, and the hint is one that a run can follow."""
    refusal = _refusal(full)
    assert refusal is not None
    assert refusal.message == "report.html: no space left"
    assert refusal.hint == "every row is kept; make room, then `kvbench report`"


def test_what_could_be_written_is_no_problem():
    """Nothing is said of it."""
    assert _refusal(lambda: None) is None
