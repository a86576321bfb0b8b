import msgspec
import pandas as pd
import pyarrow.parquet as pq
import pytest
from fakes_records import NOON, failed_row, row, story, written_run

from kvbench.errors import InputError
from kvbench.records import reader
from kvbench.records.reader import Damage, read_frame, read_rows, write_parquet
from kvbench.records.run import RunFolder
from kvbench.records.table import to_frame


def _same(left: pd.DataFrame, right: pd.DataFrame) -> bool:
    """Whether two frames hold the same values, whatever their categories."""
    return (
        left.drop(columns="chunk_gaps_s")
        .astype(object)
        .equals(right.drop(columns="chunk_gaps_s").astype(object))
        and left["chunk_gaps_s"].tolist() == right["chunk_gaps_s"].tolist()
    )


@pytest.mark.parametrize("workers", [1, 3])
def test_rows_read_back_in_order_of_index_from_any_number_of_workers(tmp_path, workers):
    """The union of the workers' files is the run."""
    rows = [*story(sessions=5), failed_row(500)]
    folder = written_run(tmp_path, rows, workers=workers)

    assert read_rows(folder) == (rows, Damage())
    frame, damage = read_frame(folder)
    assert _same(frame, to_frame(rows))
    assert damage == Damage()


def test_reading_in_small_batches_changes_nothing(tmp_path, monkeypatch):
    """The batch size bounds memory and is invisible."""
    rows = story(sessions=5)
    folder = written_run(tmp_path, rows, workers=2)
    monkeypatch.setattr(reader, "_BATCH", 4)

    assert _same(read_frame(folder)[0], to_frame(rows))


def test_a_broken_line_is_skipped_and_its_place_is_reported(tmp_path):
    """Torn, foreign, wrong in type, not text: the rows around them survive."""
    folder = written_run(tmp_path, [row(0), row(1)])
    good = folder.rows_path(0).read_bytes()
    folder.rows_path(1).write_bytes(
        good.replace(b'"index":1', b'"index":3').replace(b'"index":0', b'"index":2')
        + b'{"index": 4, "sess\n'
        + b'{"hello": "world"}\n'
        + b"\xff\xfe\x00\n"
        + good.splitlines()[0].replace(b'"index":0', b'"index":"x"')
    )
    for rows, damage in (read_rows(folder), read_frame(folder)):
        assert len(rows) == 4
        assert damage.broken == 4
        assert damage.first_broken == "rows-1.jsonl:3: Input data was truncated"
        assert damage.sentences() == [
            "4 broken lines were skipped, the first at rows-1.jsonl:3: Input data was truncated"
        ]


def test_of_rows_with_one_index_the_first_is_kept_and_the_others_are_counted(tmp_path):
    """A turn counts once, and the reader says that it was there twice."""
    rows = [row(0), row(1), row(2), row(1, cached_tokens=0), row(1, cached_tokens=1), row(2)]
    folder = written_run(tmp_path, rows)

    kept, damage = read_rows(folder)

    assert kept == [row(0), row(1), row(2)]
    assert damage == Damage(duplicates=3, first_duplicate=1)
    assert read_frame(folder)[1] == damage
    assert read_frame(folder)[0]["cached_tokens"].tolist() == [512, 512, 512]
    assert damage.sentences() == ["3 duplicate rows were skipped, the first with index 1"]


def test_a_run_without_rows_reads_as_empty(tmp_path):
    """Killed before its first row."""
    folder = RunFolder.create(tmp_path, "chat", NOON)

    assert read_rows(folder) == ([], Damage())
    assert len(read_frame(folder)[0]) == 0


def test_parquet_holds_the_same_rows_and_the_same_damage(tmp_path):
    """What was wrong with the row files is still known when only the table is read."""
    rows = [*story(sessions=5), failed_row(500, error_message="two\nlines")]
    folder = written_run(tmp_path, rows, workers=2)
    with folder.rows_path(1).open("ab") as file:
        file.write(b"{torn")
    from_lines, damage = read_frame(folder)
    assert write_parquet(folder) == damage

    for path in folder.rows_paths():
        path.unlink()
    from_parquet, kept = read_frame(folder)

    assert _same(from_parquet, from_lines)
    assert kept == damage
    assert kept.broken == 1
    assert pq.read_schema(folder.parquet_path).metadata[b"kvbench.schema"] == b"1"


def test_parquet_is_not_believed_once_the_row_files_have_grown(tmp_path):
    """A table that was written too early must not hide rows."""
    folder = written_run(tmp_path, [row(0)])
    write_parquet(folder)
    with folder.rows_path(0).open("ab") as file:
        file.write(msgspec.json.encode(row(1)) + b"\n")

    assert read_frame(folder)[0]["index"].tolist() == [0, 1]


def decide(folder, *causes):
    """Write a decision on each request, with these causes."""
    told = [{"id": f"r{n}", "cause": cause} for n, cause in enumerate(causes)]
    folder.decisions_path.write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in told))


def causes_of(folder):
    """Return the causes in a run's rows, read in every way that there is."""
    rows, _ = read_rows(folder)
    frame, _ = read_frame(folder)
    found = [row.prediction_cause for row in rows]
    told = frame["prediction_cause"].astype(object)
    assert told.where(told.notna(), None).tolist() == found
    return found


def test_rows_have_the_cause_that_the_router_found(tmp_path):
    """By the request; a turn without a decision, or one that nothing is said of, has none."""
    folder = written_run(tmp_path, [row(0), row(1), row(2), row(3)], workers=2)
    assert causes_of(folder) == [None] * 4
    decide(folder, "none", "evicted", None)
    assert causes_of(folder) == ["none", "evicted", None, None]
    assert "evicted" in read_frame(folder)[0].to_csv()


def test_parquet_is_made_of_rows_and_decisions(tmp_path):
    """Decisions that come after it make it stale; it outlives both."""
    folder = written_run(tmp_path, [row(0), row(1)])
    write_parquet(folder)
    decide(folder, "none", "late")
    assert causes_of(folder) == ["none", "late"]
    write_parquet(folder)
    for path in [*folder.rows_paths(), folder.decisions_path]:
        path.unlink()
    assert read_frame(folder)[0]["prediction_cause"].tolist() == ["none", "late"]


def test_decisions_that_cannot_be_read_cost_no_row(tmp_path):
    """A folder in their place, or garbage."""
    folder = written_run(tmp_path, [row(0), row(1)])
    folder.decisions_path.write_bytes(b"\xff\x00{]\n{}\n" * 3)
    assert causes_of(folder) == [None, None]
    folder.decisions_path.unlink()
    folder.decisions_path.mkdir()
    assert causes_of(folder) == [None, None]


def old_parquet(folder, *lacks):
    """Write the Parquet file of a kvbench whose rows lacked some columns; remove the row files."""
    write_parquet(folder)
    table = pq.read_table(folder.parquet_path)
    pq.write_table(table.drop_columns(list(lacks)), folder.parquet_path)
    for path in folder.rows_paths():
        path.unlink()


def test_rows_of_an_older_run_are_read_from_its_parquet_file_alone(tmp_path):
    """What rows did not have then is unknown; what they have always had is not made up."""
    rows = [row(0), failed_row(1), row(2)]
    folder = written_run(tmp_path, rows)
    old_parquet(folder, "prediction_cause", "context_ratio")
    frame, damage = read_frame(folder)
    assert _same(frame, to_frame(rows))
    assert damage == Damage()
    assert frame["prediction_cause"].isna().all()

    worse = written_run(tmp_path, rows, name="worse")
    old_parquet(worse, "session")
    with pytest.raises(InputError, match=r"rows\.parquet: cannot be read"):
        read_frame(worse)


def test_a_broken_parquet_file_falls_back_to_the_row_files(tmp_path):
    """The row files are the truth; without them the error names the file."""
    folder = written_run(tmp_path, [row(0)])
    folder.parquet_path.write_bytes(b"PAR1 nonsense")

    assert len(read_frame(folder)[0]) == 1
    folder.rows_path(0).unlink()
    with pytest.raises(InputError, match=r"rows\.parquet: cannot be read"):
        read_frame(folder)


def test_a_row_file_that_cannot_be_opened_is_an_input_error(tmp_path):
    """A folder in place of a file."""
    folder = RunFolder.create(tmp_path, "chat", NOON)
    folder.rows_path(0).mkdir()
    with pytest.raises(InputError, match=r"rows-0\.jsonl: cannot be read"):
        read_rows(folder)


def test_a_disk_that_does_not_take_the_parquet_file_is_the_operators(tmp_path, monkeypatch):
    """The row files are complete without it, and nothing half-written is left."""
    folder = written_run(tmp_path, [row(0)])

    def refuse(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pyarrow.parquet.write_table", refuse)
    with pytest.raises(
        InputError, match=r"rows\.parquet: cannot be written: No space left"
    ) as caught:
        write_parquet(folder)

    assert caught.value.hint == "free space there; the row files are complete without it"
    assert sorted(path.name for path in folder.path.iterdir()) == ["manifest.json", "rows-0.jsonl"]
