import os
import platform

import pytest
from fakes_records import NOON, manifest, row, story

from kvbench.errors import InputError
from kvbench.records.manifest import Manifest, Testimony, Workload, this_machine
from kvbench.records.run import RunFolder


def test_a_folder_is_named_for_its_moment_and_its_name(tmp_path):
    """The name sorts by time and is safe on every file system."""
    folder = RunFolder.create(tmp_path / "runs", "Chat: prefix/äware ../..", NOON)

    assert folder.path == tmp_path / "runs" / "20261129-120000-chat-prefix-ware"
    assert folder.path.is_dir()


@pytest.mark.parametrize(("name", "slug"), [("", "run"), ("///", "run"), ("x" * 99, "x" * 48)])
def test_odd_names_still_give_a_folder(tmp_path, name, slug):
    """Nothing left of a name: "run"; too much of it: cut."""
    assert RunFolder.create(tmp_path, name, NOON).id == f"20261129-120000-{slug}"


def test_runs_of_the_same_second_get_folders_of_their_own(tmp_path):
    """Two arms started at once must not share a folder."""
    ids = [RunFolder.create(tmp_path, "chat", NOON).id for _ in range(3)]

    assert ids == [f"20261129-120000-chat{suffix}" for suffix in ("", "-2", "-3")]


def test_a_file_in_place_of_the_root_is_an_input_error(tmp_path):
    """It must not spin for a free name for ever."""
    (tmp_path / "runs").write_text("")
    with pytest.raises(InputError, match="runs: expected a folder for runs, got a file"):
        RunFolder.create(tmp_path / "runs", "chat", NOON)


def test_a_manifest_reads_back_equal_with_the_folder_as_its_id(tmp_path):
    """Nested values survive, and the id is what the folder is called."""
    folder = RunFolder.create(tmp_path, "chat", NOON)
    written = manifest(story(sessions=2), workload=Workload(spec={"a": {"b": [1, None, "x"]}}))
    folder.write_manifest(written)

    read = RunFolder.open(folder.path).read_manifest()

    assert read.id == folder.id
    assert read.workload.spec == {"a": {"b": [1, None, "x"]}}
    assert read == manifest(story(sessions=2), id=folder.id, workload=written.workload)
    assert [path.name for path in folder.path.iterdir()] == ["manifest.json"]


def test_unknown_keys_are_ignored_and_missing_ones_have_defaults(tmp_path):
    """A run of another version stays readable as long as its schema is not newer."""
    folder = RunFolder.create(tmp_path, "chat", NOON)
    folder.manifest_path.write_text('{"schema": 1, "from_the_future": {"x": 1}, "arm": "prefix"}')

    assert folder.read_manifest() == Manifest(arm="prefix")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param('{"schema": 99, "arm": 3}', "schema: expected at most 1, got 99", id="newer"),
        pytest.param('{"schema": 1, "seed": "x"}', "`int | null`, got `str`", id="wrong type"),
        pytest.param('{"schema": 1, "se', "cannot be read", id="cut"),
        pytest.param("[]", "cannot be read", id="not an object"),
    ],
)
def test_a_manifest_that_cannot_be_trusted_is_refused_with_its_place(tmp_path, text, message):
    """The error names the file, says what is wrong and gives a hint."""
    folder = RunFolder.create(tmp_path, "chat", NOON)
    folder.manifest_path.write_text(text)
    with pytest.raises(InputError) as caught:
        RunFolder.open(folder.path)

    assert caught.value.message.startswith(f"{folder.manifest_path}: ")
    assert message in caught.value.message
    assert caught.value.hint


def test_what_is_not_a_run_is_refused_with_a_hint(tmp_path):
    """Missing, a file, or a folder without a manifest."""
    (tmp_path / "file").write_text("")
    for name, message in [
        ("gone", "expected a run folder, got nothing there"),
        ("file", "expected a run folder, got a file"),
        ("", "found no manifest.json in it"),
    ]:
        with pytest.raises(InputError, match=message) as caught:
            RunFolder.open(tmp_path / name)
        assert caught.value.hint


def test_row_files_are_found_in_order_of_worker(tmp_path):
    """By number, not by letter; other files are none of them."""
    folder = RunFolder.create(tmp_path, "chat", NOON)
    for worker in (10, 2, 0):
        folder.rows_path(worker).write_text("")
    (folder.path / "rows-old.jsonl").write_text("")

    assert folder.rows_paths() == [folder.rows_path(worker) for worker in (0, 2, 10)]


def test_testimonies_read_back_in_order_of_worker(tmp_path):
    """What each load worker says about itself is kept apart."""
    folder = RunFolder.create(tmp_path, "chat", NOON)
    said = [Testimony(worker=w, turns=w + 5, lateness_p99_s=0.01 * w) for w in (0, 1, 2)]
    for testimony in reversed(said):
        folder.write_testimony(testimony)

    assert folder.read_testimonies() == said


def test_a_manifest_that_cannot_be_written_is_an_input_error(tmp_path):
    """The folder has gone: say where it should have been written."""
    folder = RunFolder(tmp_path / "gone")
    with pytest.raises(InputError, match=r"manifest\.json: cannot be written: No such file"):
        folder.write_manifest(manifest([row()]))


def test_a_folder_that_may_not_be_made_is_an_input_error(tmp_path, monkeypatch):
    """The disk says why, we say where."""

    def refuse(*_args, **_kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.mkdir", refuse)
    with pytest.raises(InputError, match="20261129-120000-chat: cannot make a run folder: Perm"):
        RunFolder.create(tmp_path, "chat", NOON)


def test_a_manifest_that_is_a_folder_is_no_manifest(tmp_path):
    """What cannot be read as a file is named."""
    folder = RunFolder.create(tmp_path, "chat", NOON)
    folder.testimony_path(0).mkdir()
    with pytest.raises(InputError, match=r"load-0\.json: cannot be read: Is a directory"):
        folder.read_testimonies()


def test_the_fingerprint_names_processors_system_and_python():
    """So that two runs can be told to come from two machines."""
    machine = this_machine()

    assert machine.cpus == os.cpu_count()
    assert machine.python == platform.python_version()
    assert machine.platform.startswith(platform.system())
