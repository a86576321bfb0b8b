"""A file that changes while it is used."""

from __future__ import annotations

import asyncio
import logging
import os

import pytest

from kvbench.errors import InputError
from kvbench.router.watched import WatchedFile


def read(path) -> str:
    """Return the text of a file, unless it is "bad"."""
    try:
        text = path.read_text()
    except OSError as error:
        raise InputError("cannot be read", where=str(path)) from error
    if text == "bad":
        raise InputError("expected something good", where=f"{path}:1")
    return text


def test_what_changes_is_used_and_what_is_bad_is_not(tmp_path, caplog):
    """The one before holds, and why is said once."""
    caplog.set_level(logging.INFO, "kvbench")
    path, used = tmp_path / "file", []
    path.write_text("one")
    file = WatchedFile(path, read, used.append)
    file.load()

    async def change(text: str | None) -> None:
        if text is None:
            path.unlink()
        else:
            path.write_text(text)
        for _ in range(3):
            await file.refresh()

    async def case() -> None:
        await file.refresh()
        assert used == ["one"]
        await change("three")
        assert (used, file.trouble) == (["one", "three"], None)
        assert [record.levelno for record in caplog.records] == [logging.INFO]
        caplog.clear()
        await change("bad")
        assert used == ["one", "three"]
        assert file.trouble == f"{path}:1: expected something good"
        await change(None)
        assert file.trouble == f"{path}: cannot be read"
        assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
        assert caplog.messages[0].endswith("something good; what it said before holds")
        await change("four")
        assert (used, file.trouble) == (["one", "three", "four"], None)

    asyncio.run(case())


def test_a_file_replaced_by_one_of_the_same_size_and_time_has_changed(tmp_path):
    """As a tool does that writes a new file and moves it, or turns a link."""
    path, used = tmp_path / "file", []
    for name, text in (("old", "one"), ("new", "two")):
        (tmp_path / name).write_text(text)
        os.utime(tmp_path / name, (1, 1))
    path.symlink_to(tmp_path / "old")
    file = WatchedFile(path, read, used.append)
    file.load()
    path.unlink()
    path.symlink_to(tmp_path / "new")
    asyncio.run(file.refresh())

    assert used == ["one", "two"]


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path):
    """Nor is a directory read: what was said before holds, and a file is read again."""
    path, used = tmp_path / "file", []
    path.write_text("one")
    file = WatchedFile(path, read, used.append)
    file.load()
    path.unlink()
    os.mkfifo(path)
    asyncio.run(file.refresh())
    assert (used, file.trouble) == (["one"], f"{path}: expected a file")

    path.unlink()
    path.write_text("two")
    asyncio.run(file.refresh())
    assert (used, file.trouble) == (["one", "two"], None)


def test_the_first_version_must_be_good(tmp_path):
    """Who starts something wants to know at once."""
    path = tmp_path / "file"
    path.write_text("bad")
    with pytest.raises(InputError, match="expected something good"):
        WatchedFile(path, read, print).load()
