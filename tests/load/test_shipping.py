"""Rows of a worker on another machine, brought to the master's folder."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.errors import InvalidMeasurementError
from kvbench.load.shipping import MOST_BYTES, Parcel, Shipper, receive
from kvbench.records.run import RunFolder


def folders(tmp_path):
    """Return the worker's folder and the master's."""
    made = RunFolder(tmp_path / "worker"), RunFolder(tmp_path / "master")
    for folder in made:
        folder.path.mkdir()
    return made


@given(st.lists(st.binary(max_size=50), max_size=8))
def test_the_masters_file_is_the_workers_whenever_it_was_read(tmp_path_factory, pieces):
    """Also where a line was only half written when it was read."""
    worker, master = folders(tmp_path_factory.mktemp("ship"))
    shipper = Shipper(worker, 2)
    for piece in pieces:
        with worker.rows_path(2).open("ab") as file:
            file.write(piece)
        for parcel in shipper.rows():
            receive(master, Parcel.decode(parcel.encode()))
    worker.testimony_path(2).write_bytes(b"{}")
    for parcel in shipper.rest():
        receive(master, parcel)

    whole = master.rows_path(2).read_bytes() if master.rows_path(2).exists() else b""
    assert whole == b"".join(pieces)
    assert master.testimony_path(2).read_bytes() == b"{}"


def test_a_parcel_has_a_bound(tmp_path):
    """It is one message of Locust's."""
    worker, _ = folders(tmp_path)
    worker.rows_path(0).write_bytes(b"x" * (2 * MOST_BYTES + 1))

    assert [len(parcel.data) for parcel in Shipper(worker, 0).rows()] == [MOST_BYTES, MOST_BYTES, 1]


def test_a_parcel_whose_forerunner_is_missing_is_told(tmp_path):
    """What was lost on the way never passes for a whole file."""
    _, master = folders(tmp_path)

    with pytest.raises(InvalidMeasurementError, match=r"rows-0.jsonl has 0 bytes where 7 were"):
        receive(master, Parcel("rows-0.jsonl", 7, b"x"))


@pytest.mark.parametrize("name", ["../rows-0.jsonl", "manifest.json", "rows-x.jsonl", ""])
def test_only_rows_and_testimonies_are_taken(tmp_path, name):
    """A message must not write what it likes."""
    _, master = folders(tmp_path)

    with pytest.raises(InvalidMeasurementError, match="a file that is no rows"):
        receive(master, Parcel(name, 0, b"x"))
    assert list(master.path.iterdir()) == []
