"""The master's side of Locust: makes the run folder, hands out shares, says when, sees the end.

A run on one process is a run with one worker, who happens to live in the same process: Locust
delivers messages to itself there, so there is one way of doing it.

    conductor                          worker i of n
    kvbench_start {options, share} ──►  make the plan, find the ceiling, connect
               ◄── kvbench_prepared {planned, manifest}
    kvbench_go {start}             ──►  send
               ◄── kvbench_live {tally}                               (about once a second)
               ◄── kvbench_parcel {rows}           (where its folder is not ours: another machine)
    kvbench_stop                   ──►  end soon                      (only if somebody stops it)
               ◄── kvbench_done {result}

A worker that Locust has lost ends the run: it counts as done, with an error, the others are told to
stop, and the turns that it owes get rows that say so. What the router decided is collected beside,
and when all are done the manifest is closed (unless a parent process began it, whose business both
are then), and Locust is told to quit, or, with
its web UI, to stop, so that another run can be started from there.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gevent
import msgspec

from kvbench.clock import WallClock, utc
from kvbench.errors import InputError, InvalidMeasurementError, KvbenchError
from kvbench.load.decisions import decisions_collected
from kvbench.load.live import Live
from kvbench.load.preparation import plan_of
from kvbench.load.run import Result
from kvbench.load.settings import OPTIONS, Settings
from kvbench.load.shipping import MARK, Parcel, receive
from kvbench.load.tally import Tally
from kvbench.records.manifest import Manifest
from kvbench.records.run import RunFolder
from kvbench.records.warm import refuse_warm
from kvbench.workload.load import fingerprint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

LEAD_SECONDS = 0.5  # between "go" and second 0: time for first bodies and connections
PULSE = 0.05  # seconds between two looks at the workers
HALT_SECONDS = 30.0
PATIENCE_SECONDS = 5.0  # of silence beyond Locust's own three, for a worker on a busy machine
POINT_SECONDS = 1.0  # of the charts
RUNS = Path("runs")
LOST_CODE = InvalidMeasurementError.exit_code

log = logging.getLogger("kvbench")


class Conductor:
    """Conducts runs, one after another.

    Args:
        environment: Locust's.

    Attributes:
        exit_code: What is to be said of the last run: 0 if every planned turn has its row.
        live: What is known of the run that is on, or was last.
        folder: Where its rows are; None before the first.
    """

    def __init__(self, environment: Any) -> None:
        self._environment = environment
        self._clock = WallClock()
        self._prepared: set[str] = set()
        self._results: dict[str, Result] = {}
        self._lost: list[str] = []
        self._missing: dict[str, float] = {}  # since when
        self._trouble: KvbenchError | None = None
        self._stop = False
        self._began = 0.0
        self._greenlet: Any = None
        self._folders_used: set[Path] = set()
        self.exit_code = 0
        self.live = Live()
        self.folder: RunFolder | None = None

    def start(self) -> None:
        """Begin a run with the options as they are now."""
        self._prepared.clear()
        self._results.clear()
        self._lost.clear()
        self._missing.clear()
        self._trouble = None
        self._stop = False
        self.exit_code = 0
        try:
            settings = Settings.parse(self._environment.host, self._options())
            sha256 = fingerprint(settings.source)
            self.folder = folder = self._folder(settings)
            mark = _mark(folder)
        except KvbenchError as error:
            self.live.begin("", "", "")
            self._complain(error.message, error.exit_code, error.hint)
            self._greenlet = gevent.spawn(self._leave)
            return
        self.live.begin(folder.id, settings.source.stem, settings.host)
        owned = not folder.manifest_path.exists()
        workers = self._workers()
        for number, worker in enumerate(workers):
            share = {
                "folder": str(folder.path),
                "mark": mark,
                "sha256": sha256,
                "worker": number,
                "workers": len(workers),
                "command": sys.argv if owned and number == 0 else None,
            }
            data = {"host": settings.host, "options": self._options(), "share": share}
            self._send("kvbench_start", data, [worker])
        self._greenlet = gevent.spawn(self._conduct_safely, settings, folder, workers, owned)

    def on_prepared(self, worker: str, data: Mapping[str, Any]) -> None:
        """Hear that a worker is ready, and, of the first, what the run is."""
        self._prepared.add(worker)
        self.live.planned += data["planned"]
        if data["manifest"] is not None:
            manifest = msgspec.json.decode(data["manifest"], type=Manifest)
            self._guard(lambda folder: _begin(folder, manifest))

    def on_live(self, data: Mapping[str, Any]) -> None:
        """Hear what a worker has filed since it last told."""
        self.live.hear(str(data["worker"]), Tally.decode(data["tally"]))

    def on_parcel(self, data: bytes) -> None:
        """Take rows of a worker on another machine."""
        parcel = Parcel.decode(data)
        self._guard(lambda folder: receive(folder, parcel))

    def on_done(self, worker: str, result: Result) -> None:
        """Hear that a worker has written all its rows, or why it has not."""
        self._results[worker] = result

    def halt(self) -> None:
        """Stop the run, if one is on, and wait until it is closed."""
        if self._greenlet is None or self._greenlet is gevent.getcurrent():
            return
        self._stop = True
        self._greenlet.join(timeout=HALT_SECONDS)

    def _guard(self, act: Callable[[RunFolder], None]) -> None:
        """Do something with the folder; what goes wrong ends the run."""
        assert self.folder is not None
        try:
            act(self.folder)
        except KvbenchError as error:
            self._trouble = self._trouble or error

    def _conduct_safely(
        self, settings: Settings, folder: RunFolder, workers: list[str], owned: bool
    ) -> None:
        """See a run through; nothing of it may be swallowed by a greenlet."""
        try:
            with decisions_collected(settings, folder) if owned else nullcontext():
                self._conduct(folder, workers)
            self._end(settings, folder, workers, owned=owned)
        except KvbenchError as error:
            self._complain(error.message, error.exit_code, error.hint)
        except Exception:  # noqa: BLE001 - the top of the greenlet; the trace is kept
            self._complain(f"a fault of kvbench:\n{traceback.format_exc()}", 1)
        self._greenlet = None
        if not self._stop:
            self._leave()

    def _conduct(self, folder: RunFolder, workers: list[str]) -> None:
        """See a run through, from the workers' preparation to the last row."""
        waiting = set(workers)
        while waiting - self._prepared - set(self._results) and not self._ending():
            self._look(workers)
        if not self._ending():
            self._go(folder, workers)
        stopped = False
        while waiting - set(self._results):
            if not stopped and self._ending():
                self._send("kvbench_stop", {}, workers)
                self.live.state = "stopping"
                stopped = True
            self._look(workers)
        self._tick(0.0)

    def _ending(self) -> bool:
        """Whether the run is to end before its time."""
        broken = any(result.error for result in self._results.values())
        return self._stop or self._trouble is not None or broken

    def _go(self, folder: RunFolder, workers: list[str]) -> None:
        """Say when second 0 is, to the workers and in the manifest."""
        start = utc() + timedelta(seconds=LEAD_SECONDS)
        self._began = self._clock.now() + LEAD_SECONDS
        self._send("kvbench_go", {"start": start.isoformat()}, workers)
        self.live.state = "running"
        noted = msgspec.structs.replace(folder.read_manifest(), started_at=start.isoformat())
        self._guard(lambda folder: folder.write_manifest(noted))

    def _end(
        self, settings: Settings, folder: RunFolder, workers: list[str], *, owned: bool
    ) -> None:
        """Say what went wrong, give lost turns their rows, and close the manifest."""
        errors = {result.error: result for result in self._results.values() if result.error}
        for error, result in errors.items():
            self._complain(error, result.exit_code)
        if self._trouble is not None:
            self._complain(self._trouble.message, self._trouble.exit_code, self._trouble.hint)
        stopped = self._stop
        self.live.state = "failed" if self.exit_code else "interrupted" if stopped else "finished"
        (folder.path / MARK).unlink(missing_ok=True)
        if folder.manifest_path.exists():
            self._write_lost(settings, folder, workers)
            if owned:
                # Tables of rows take 70 MB, which no worker needs, and no master before the end.
                from kvbench.load.closing import close  # noqa: PLC0415

                close(folder, self.live.state)
                log.warning("rows are in %s", folder.path)
        elif owned and not any(folder.path.iterdir()):
            folder.path.rmdir()

    def _write_lost(self, settings: Settings, folder: RunFolder, workers: list[str]) -> None:
        """Write the rows that lost workers owe."""
        if not self._lost:
            return
        from kvbench.records.lost import write_lost  # noqa: PLC0415 - as in _end

        plan = plan_of(settings)
        for worker in self._lost:
            number = workers.index(worker)
            count = write_lost(folder, plan, number, len(workers))
            log.error("load worker %d was lost: %d of its turns have no answer", number, count)

    def _look(self, workers: list[str]) -> None:
        """Let others do something, and count workers that are lost as done."""
        gevent.sleep(PULSE)
        self._tick(POINT_SECONDS)
        clients = getattr(self._environment.runner, "clients", None)
        if clients is None:
            return
        for number, worker in enumerate(workers):
            if worker not in self._results and self._is_lost(worker, clients):
                self._lost.append(worker)
                error = f"load worker {number} was lost; its rows end where it did"
                self._results[worker] = Result(0, 0, 0, error, LOST_CODE)

    def _is_lost(self, worker: str, clients: Any) -> bool:
        """Whether a worker has left Locust, or has been silent for too long."""
        if worker not in clients:
            return True
        if clients[worker].state != "missing":
            self._missing.pop(worker, None)
            return False
        now = self._clock.now()
        return now - self._missing.setdefault(worker, now) > PATIENCE_SECONDS

    def _tick(self, least: float) -> None:
        """End a point of the charts, if it is `least` seconds long."""
        if self.live.state in {"running", "stopping"}:
            self.live.tick(self._clock.now() - self._began, least)

    def _leave(self) -> None:
        """Tell Locust that the run is over."""
        self._greenlet = None
        if self._environment.web_ui is None:
            self._environment.runner.quit()
        else:
            self._environment.runner.stop()

    def _options(self) -> dict[str, object]:
        """Return our options as they are now: the web UI changes them."""
        parsed = vars(self._environment.parsed_options)
        return {option.name: parsed.get(option.name) for option in OPTIONS}

    def _folder(self, settings: Settings) -> RunFolder:
        """Return the folder that was asked for; a second run gets one of its own beside it."""
        asked = settings.run_dir
        if asked is None or asked in self._folders_used:
            root = RUNS if asked is None else asked.parent
            return RunFolder.create(root, settings.run_name, utc())
        self._folders_used.add(asked)
        return RunFolder(asked)

    def _workers(self) -> list[str]:
        """Return the ids of the workers that Locust has."""
        clients = getattr(self._environment.runner, "clients", None)
        if clients is None:
            return ["local"]
        return [str(client.id) for client in clients.all if client.state != "missing"]

    def _send(self, what: str, data: Mapping[str, object], workers: Iterable[str]) -> None:
        """Send a message to those workers that are not done."""
        for worker in workers:
            if worker not in self._results:
                self._environment.runner.send_message(what, data, client_id=worker)

    def _complain(self, message: str, exit_code: int, hint: str | None = None) -> None:
        """Say what is wrong, and keep the first exit code."""
        self.exit_code = self.exit_code or exit_code
        self.live.state = "failed"
        self.live.message = self.live.message or message
        log.error("%s%s", message, f"\n  hint: {hint}" if hint else "")


def _begin(folder: RunFolder, manifest: Manifest) -> None:
    """Write the manifest of a run that is about to begin.

    Raises:
        InputError: It would find the caches warm and is not meant to; or it cannot be written.
    """
    refuse_warm(folder.path.parent, manifest)
    folder.write_manifest(manifest)


def _mark(folder: RunFolder) -> str:
    """Mark a folder as the master's; return the mark.

    Raises:
        InputError: It cannot be written to.
    """
    mark = f"{os.getpid()} {utc().isoformat()}"
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
        (folder.path / MARK).write_text(mark)
    except OSError as error:
        raise InputError(
            f"cannot be written to: {error.strerror or error}",
            where=str(folder.path),
            hint="choose a folder that you may write to, on a disk with free space",
        ) from error
    return mark
