"""The master's side of Locust: makes the run folder, hands out shares, says when, sees the end.

A run on one process is a run with one worker, who happens to live in the same process: Locust
delivers messages to itself there, so there is one way of doing it.

    conductor                          worker i of n
    kvbench_start {options, share} ──►  make the plan, find the ceiling, connect
               ◄── kvbench_prepared
    kvbench_go {start}             ──►  send
    kvbench_stop                   ──►  end soon                      (only if somebody stops it)
               ◄── kvbench_done {result}

A worker that Locust has lost counts as done, with an error. When all are done the manifest is
closed (unless a parent process began it, whose business it is then), and Locust is told to quit,
or, with its web UI, to stop, so that another run can be started from there.
"""

from __future__ import annotations

import logging
import sys
import traceback
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gevent

from kvbench.clock import utc
from kvbench.errors import KvbenchError
from kvbench.load.closing import close
from kvbench.load.run import Result
from kvbench.load.settings import OPTIONS, Settings
from kvbench.records.run import RunFolder

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

LEAD_SECONDS = 0.5  # between "go" and second 0: time for first bodies and connections
PULSE = 0.05  # seconds between two looks at the workers
HALT_SECONDS = 30.0
RUNS = Path("runs")

log = logging.getLogger("kvbench")


class Conductor:
    """Conducts runs, one after another.

    Args:
        environment: Locust's.

    Attributes:
        exit_code: What is to be said of the last run: 0 if every planned turn has its row.
    """

    def __init__(self, environment: Any) -> None:
        self._environment = environment
        self._prepared: set[str] = set()
        self._results: dict[str, Result] = {}
        self._stop = False
        self._greenlet: Any = None
        self._folders_used: set[Path] = set()
        self.exit_code = 0

    def start(self) -> None:
        """Begin a run with the options as they are now."""
        self._prepared.clear()
        self._results.clear()
        self._stop = False
        self.exit_code = 0
        try:
            settings = Settings.parse(self._environment.host, self._options())
            folder = self._folder(settings)
        except KvbenchError as error:
            self._complain(error.message, error.exit_code, error.hint)
            self._greenlet = gevent.spawn(self._leave)
            return
        owned = not folder.manifest_path.exists()
        workers = self._workers()
        for number, worker in enumerate(workers):
            share = {
                "folder": str(folder.path),
                "worker": number,
                "workers": len(workers),
                "command": sys.argv if owned else None,
            }
            options = self._options()
            data = {"host": settings.host, "options": options, "share": share}
            self._send("kvbench_start", data, [worker])
        self._greenlet = gevent.spawn(self._conduct_safely, folder, workers, owned)

    def on_prepared(self, worker: str) -> None:
        """Hear that a worker is ready."""
        self._prepared.add(worker)

    def on_done(self, worker: str, result: Result) -> None:
        """Hear that a worker has written all its rows, or why it has not."""
        self._results[worker] = result

    def halt(self) -> None:
        """Stop the run, if one is on, and wait until it is closed."""
        if self._greenlet is None or self._greenlet is gevent.getcurrent():
            return
        self._stop = True
        self._greenlet.join(timeout=HALT_SECONDS)

    def _conduct_safely(self, folder: RunFolder, workers: list[str], owned: bool) -> None:
        """See a run through; nothing of it may be swallowed by a greenlet."""
        try:
            self._conduct(folder, workers, owned)
        except KvbenchError as error:
            self._complain(error.message, error.exit_code, error.hint)
        except Exception:  # noqa: BLE001 - the top of the greenlet; the trace is kept
            self._complain(f"a fault of kvbench:\n{traceback.format_exc()}", 1)
        self._greenlet = None
        if not self._stop:
            self._leave()

    def _conduct(self, folder: RunFolder, workers: list[str], owned: bool) -> None:
        """See a run through, from the workers' preparation to the closed manifest."""
        waiting = set(workers)
        while waiting - self._prepared - set(self._results) and not self._stop:
            self._look(workers)
        if not self._results and not self._stop:
            start = utc() + timedelta(seconds=LEAD_SECONDS)
            self._send("kvbench_go", {"start": start.isoformat()}, workers)
        stopped = False
        while waiting - set(self._results):
            broken = any(result.error for result in self._results.values())
            if not stopped and (broken or self._stop):
                self._send("kvbench_stop", {}, workers)
                stopped = True
            self._look(workers)
        self._end(folder, owned=owned, stopped=stopped)

    def _end(self, folder: RunFolder, *, owned: bool, stopped: bool) -> None:
        """Say what went wrong, close the manifest, and leave no empty folder."""
        errors = {result.error: result for result in self._results.values() if result.error}
        for error, result in errors.items():
            self._complain(error, result.exit_code)
        if not owned:
            return
        if folder.manifest_path.exists():
            close(folder, "failed" if errors else "interrupted" if stopped else "finished")
            log.warning("rows are in %s", folder.path)
        elif not any(folder.path.iterdir()):
            folder.path.rmdir()

    def _look(self, workers: list[str]) -> None:
        """Let others do something, and count workers that are lost as done."""
        gevent.sleep(PULSE)
        clients = getattr(self._environment.runner, "clients", None)
        if clients is None:
            return
        for worker in workers:
            if worker not in self._results and (
                worker not in clients or clients[worker].state == "missing"
            ):
                self._results[worker] = Result(0, 0, 0, "lost; its rows end where it did", 1)

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
        asked.mkdir(parents=True, exist_ok=True)
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
        log.error("%s%s", message, f"\n  hint: {hint}" if hint else "")
