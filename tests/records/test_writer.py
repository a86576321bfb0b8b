import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from fakes_records import row

from kvbench.errors import InputError
from kvbench.records.schema import TurnRecord
from kvbench.records.writer import RowWriter

TESTS = Path(__file__).parents[1]
FLOOD = """
import itertools, pathlib, sys
from fakes_records import row
from kvbench.records.writer import RowWriter
writer = RowWriter(pathlib.Path(sys.argv[1]))
for i in itertools.count():
    writer.append(row(i))
    if i == 200:
        print("going", flush=True)
"""


def test_a_row_is_one_line_and_reads_back_equal(tmp_path):
    """What was appended is what is on disk, also where text holds line breaks."""
    path = tmp_path / "rows-0.jsonl"
    rows = [row(0), row(1, error="http", error_message="two\nlines", cached_tokens=None)]
    with RowWriter(path) as writer:
        for record in rows:
            writer.append(record)

    lines = path.read_bytes().splitlines()

    assert [msgspec.json.decode(line, type=TurnRecord) for line in lines] == rows


def test_every_row_is_on_disk_before_append_returns(tmp_path):
    """Nothing waits in a buffer of ours."""
    path = tmp_path / "rows-0.jsonl"
    writer = RowWriter(path)
    for count in (1, 2, 3):
        writer.append(row(count))
        assert path.read_bytes().count(b"\n") == count
    writer.close()
    writer.close()


def test_a_killed_writer_loses_at_most_the_row_it_was_writing(tmp_path):
    """SIGKILL in the middle of a flood of rows leaves whole lines, and at most one torn end."""
    path = tmp_path / "rows-0.jsonl"
    child = subprocess.Popen(
        [sys.executable, "-c", FLOOD, str(path)], cwd=TESTS, stdout=subprocess.PIPE
    )
    with child:
        assert child.stdout
        assert child.stdout.readline() == b"going\n"
        child.send_signal(signal.SIGKILL)

    whole, _, _ = path.read_bytes().rpartition(b"\n")
    indices = [msgspec.json.decode(line, type=TurnRecord).index for line in whole.split(b"\n")]

    assert len(indices) > 200
    assert indices == list(range(len(indices)))


def test_a_torn_line_of_an_earlier_writer_is_closed_before_the_next_row(tmp_path):
    """A crash costs the row it cut, never the row that follows."""
    path = tmp_path / "rows-0.jsonl"
    path.write_bytes(b'{"index": 0, "sess')
    with RowWriter(path) as writer:
        writer.append(row(1))

    torn, whole = path.read_bytes().splitlines()

    assert torn == b'{"index": 0, "sess'
    assert msgspec.json.decode(whole, type=TurnRecord) == row(1)


def test_a_short_write_is_finished(tmp_path, monkeypatch):
    """The kernel may take less than it was given; the rest of the line follows at once."""
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:100]))
    path = tmp_path / "rows-0.jsonl"
    with RowWriter(path) as writer:
        writer.append(row(0))
        writer.append(row(1))

    lines = path.read_bytes().splitlines()

    assert [msgspec.json.decode(line, type=TurnRecord).index for line in lines] == [0, 1]


def test_a_full_disk_is_the_operators_and_what_follows_is_whole_again(tmp_path, monkeypatch):
    """ENOSPC in mid-row names the file and the way out; a later row starts on its own line."""
    real = os.write
    room = [150]

    def write(fd, data):
        if room[0] == 0:
            raise OSError(28, "No space left on device")
        taken = real(fd, data[: room[0]])
        room[0] -= taken
        return taken

    path = tmp_path / "rows-0.jsonl"
    with RowWriter(path) as writer:
        monkeypatch.setattr(os, "write", write)
        with pytest.raises(InputError) as caught:
            writer.append(row(0))
        monkeypatch.setattr(os, "write", real)
        writer.append(row(1))

    assert caught.value.message == f"{path}: cannot write rows: No space left on device"
    assert "free space" in caught.value.hint
    assert caught.value.exit_code == 2
    torn, whole = path.read_bytes().splitlines()
    assert len(torn) == 150
    assert msgspec.json.decode(whole, type=TurnRecord) == row(1)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")  # noqa: PTH110
def test_a_device_without_space_is_named(tmp_path):
    """The same on a real device that is always full."""
    link = tmp_path / "rows-0.jsonl"
    link.symlink_to("/dev/full")
    with RowWriter(link) as writer, pytest.raises(InputError, match="No space left on device"):
        writer.append(row(0))


def test_a_file_that_cannot_be_opened_is_an_input_error(tmp_path):
    """The folder is missing: say so, with the path."""
    with pytest.raises(InputError, match=r"gone/rows-0\.jsonl: cannot write rows: No such file"):
        RowWriter(tmp_path / "gone" / "rows-0.jsonl")
