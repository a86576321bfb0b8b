"""The run folder: where everything that a run leaves behind lies.

    runs/20261129-204301-chat-prefix/
        manifest.json       what was run and how it went
        rows-0.jsonl …      one line per turn, one file per load worker
        load-0.json …       what each load worker says about itself
        rows.parquet        the same rows as a table, once the run has ended
        server.jsonl        what pods and router said at /metrics, every second
        decisions.jsonl     what the router decided on each turn, and what came of it
        verdict.json        what the gates said, once asked
        report.html         for people

The manifest is replaced whole (written beside, synced, renamed), so a reader sees the old one or
the new one, never half of one. A folder without a manifest is not a run.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import msgspec

from kvbench.errors import InputError
from kvbench.records.manifest import MANIFEST_SCHEMA, Manifest, Testimony

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

_T = TypeVar("_T")


class _Form(msgspec.Struct):
    schema: int = 0


@dataclass(frozen=True, slots=True)
class RunFolder:
    """One run on disk."""

    path: Path

    @classmethod
    def create(cls, root: Path, name: str, now: datetime) -> RunFolder:
        """Make `root`/<YYYYmmdd-HHMMSS>-<slug of name>, unique also within one second.

        Args:
            root: Parent of all runs; made if it is not there.
            name: For people; letters and digits survive, at most 48 of them.
            now: The moment that stands in the folder's name, as it is.

        Raises:
            InputError: The folder cannot be made.
        """
        slug = re.sub(r"[^a-z0-9]+", "-", name.lower())[:48].strip("-") or "run"
        stem = f"{now:%Y%m%d-%H%M%S}-{slug}"
        suffix = 1
        while True:
            path = root / (stem if suffix == 1 else f"{stem}-{suffix}")
            try:
                root.mkdir(parents=True, exist_ok=True)
                path.mkdir()
            except FileExistsError:
                if not root.is_dir():
                    raise InputError(
                        "expected a folder for runs, got a file", where=str(root)
                    ) from None
                suffix += 1
            except OSError as error:
                raise InputError(
                    f"cannot make a run folder: {error.strerror}",
                    where=str(path),
                    hint="choose a folder that you may write to",
                ) from error
            else:
                return cls(path)

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Return the run at `path`, having read its manifest once.

        Raises:
            InputError: There is no such folder, it is not a run, its manifest is broken, or a newer
                kvbench wrote it.
        """
        if not path.is_dir():
            raise InputError(
                "expected a run folder, got " + ("a file" if path.exists() else "nothing there"),
                where=str(path),
                hint="run folders lie under runs/, one per run",
            )
        folder = cls(path)
        folder.read_manifest()
        return folder

    @property
    def id(self) -> str:
        """The run's name among runs: the folder's own."""
        return self.path.resolve().name

    @property
    def manifest_path(self) -> Path:
        """Where the manifest lies."""
        return self.path / "manifest.json"

    @property
    def parquet_path(self) -> Path:
        """Where the table of all rows lies, once written."""
        return self.path / "rows.parquet"

    @property
    def server_path(self) -> Path:
        """Where the servers' numbers over the run lie."""
        return self.path / "server.jsonl"

    @property
    def decisions_path(self) -> Path:
        """Where the router's decisions lie, if there was a router that tells them."""
        return self.path / "decisions.jsonl"

    @property
    def verdict_path(self) -> Path:
        """Where the last verdict about the run lies, once there is one."""
        return self.path / "verdict.json"

    def rows_path(self, worker: int) -> Path:
        """Where load worker `worker` (from 0) writes its rows."""
        return self.path / f"rows-{worker}.jsonl"

    def rows_paths(self) -> list[Path]:
        """Return the row files that are there, in order of worker."""
        return self._numbered("rows-", ".jsonl")

    def testimony_path(self, worker: int) -> Path:
        """Where load worker `worker` (from 0) writes its `Testimony`."""
        return self.path / f"load-{worker}.json"

    def write_testimony(self, testimony: Testimony) -> None:
        """Write a load worker's testimony, whole."""
        _write_whole(self.testimony_path(testimony.worker), testimony)

    def read_testimonies(self) -> list[Testimony]:
        """Return what the load workers wrote about themselves, in order of worker.

        Raises:
            InputError: One of the files is broken.
        """
        return [_read(path, Testimony) for path in self._numbered("load-", ".json")]

    def write_manifest(self, manifest: Manifest) -> None:
        """Replace the manifest, whole; the folder's name becomes its id.

        Raises:
            InputError: The disk does not take it.
        """
        _write_whole(self.manifest_path, msgspec.structs.replace(manifest, id=self.id))

    def read_manifest(self) -> Manifest:
        """Return the manifest.

        Raises:
            InputError: It is missing, broken, or written by a newer kvbench.
        """
        if not self.manifest_path.is_file():
            raise InputError(
                "expected a run folder, found no manifest.json in it",
                where=str(self.path),
                hint="name the folder of one run, such as runs/20261129-204301-chat",
            )
        form = _read(self.manifest_path, _Form).schema
        if form > MANIFEST_SCHEMA:
            raise InputError(
                f"schema: expected at most {MANIFEST_SCHEMA}, got {form}",
                where=str(self.manifest_path),
                hint="a newer kvbench wrote this run: upgrade kvbench to read it",
            )
        return _read(self.manifest_path, Manifest)

    def _numbered(self, prefix: str, suffix: str) -> list[Path]:
        numbers = (
            path.name.removeprefix(prefix).removesuffix(suffix)
            for path in self.path.glob(f"{prefix}*{suffix}")
        )
        workers = sorted(int(number) for number in numbers if number.isdecimal())
        return [self.path / f"{prefix}{worker}{suffix}" for worker in workers]


def _read(path: Path, form: type[_T]) -> _T:
    try:
        return msgspec.json.decode(path.read_bytes(), type=form)
    except msgspec.MsgspecError as error:
        raise InputError(
            f"cannot be read: {error}",
            where=str(path),
            hint="the file is damaged or was edited; restore it, or run again",
        ) from error
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from error


def _write_whole(path: Path, value: msgspec.Struct) -> None:
    """Write `value` beside `path`, sync it, and rename it into place."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with beside.open("wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise InputError(
            f"cannot be written: {error.strerror or error}",
            where=str(path),
            hint="free space there, or run again with a run folder on another disk",
        ) from error
