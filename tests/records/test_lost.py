"""Rows of turns that were lost with their load worker."""

from fakes_live import row
from fakes_load import conversations

from kvbench.records.lost import write_lost
from kvbench.records.reader import read_rows
from kvbench.records.run import RunFolder
from kvbench.records.writer import RowWriter


def test_every_turn_without_a_row_gets_one_of_a_kind_of_its_own(tmp_path):
    """Of the lost worker's part, and no other; what it had filed stays, and a torn line ends."""
    folder = RunFolder(tmp_path)
    plan = conversations(6, 2, every=1.0, think=0.5)
    mine = [turn.index for turn in plan.part(1, 2).turns]
    with RowWriter(folder.rows_path(1)) as writer:
        writer.append(row(index=mine[0], worker=1))
    with folder.rows_path(1).open("ab") as file:
        file.write(b'{"index": 3, "ses')

    count = write_lost(folder, plan, 1, 2)

    rows, damage = read_rows(folder)
    lost = [one for one in rows if one.error == "lost"]
    assert count == len(lost) == len(mine) - 1
    assert sorted(one.index for one in rows) == sorted(mine)
    assert damage.broken == 1
    assert {(one.worker, one.sent_s, one.error_message) for one in lost} == {
        (1, None, "load worker 1 was gone before it had filed this turn")
    }


def test_a_lost_turn_is_due_as_if_all_answers_had_come_at_once(tmp_path):
    """When it should have been sent is known no better."""
    folder = RunFolder(tmp_path)

    write_lost(folder, conversations(1, 3, every=1.0, think=0.5), 0, 1)

    rows, _ = read_rows(folder)
    assert [one.intended_s for one in rows] == [0.0, 0.5, 1.0]
    assert [one.request_id for one in rows] == [f"{folder.id}-{i}" for i in range(3)]


def test_where_nothing_is_owed_nothing_is_written(tmp_path):
    """Not even an empty file."""
    folder = RunFolder(tmp_path)
    plan = conversations(1, 1, every=1.0, think=0.5)
    with RowWriter(folder.rows_path(0)) as writer:
        writer.append(row(index=0))

    assert write_lost(folder, plan, 0, 1) == 0
    assert write_lost(folder, plan, 1, 2) == 0
    assert not folder.rows_path(1).exists()
