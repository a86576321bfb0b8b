"""A worker's side of Locust: plays one share when the conductor says so, and shows how it goes.

Lives on gevent, in the main thread; the share itself runs in a real thread (`kvbench.load.run`).
What is shown in Locust's tables is for watching: two lines a turn, with Locust's rounding. What is
judged are the rows.
"""

from __future__ import annotations

import dataclasses
import logging
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gevent

from kvbench.errors import KvbenchError
from kvbench.load.outcome import STOPPED
from kvbench.load.run import LoadRun, Result, Share
from kvbench.load.settings import Settings
from kvbench.records.run import RunFolder

if TYPE_CHECKING:
    from datetime import datetime

    from kvbench.records.schema import TurnRecord

PULSE = 0.1  # seconds between two looks at the thread
HALT_SECONDS = 30.0

log = logging.getLogger("kvbench")


class TurnError(Exception):
    """A turn that was not answered in full, as Locust's table of failures shows it."""


class Player:
    """Plays shares, one after another.

    Args:
        environment: Locust's; `environment.runner.send_message` reaches the conductor.
    """

    def __init__(self, environment: Any) -> None:
        self._environment = environment
        self._run: LoadRun | None = None
        self._greenlet: Any = None

    def start(self, host: str, options: dict[str, object], share: dict[str, Any]) -> None:
        """Begin with a share: make everything ready, and say so."""
        try:
            settings = Settings.parse(host, options)
            path = Path(share["folder"])
            path.mkdir(parents=True, exist_ok=True)
            command = None if share["command"] is None else tuple(share["command"])
            whole = Share(RunFolder(path), share["worker"], share["workers"], command)
        except KvbenchError as error:
            self._say("kvbench_done", Result(0, 0, 0, error.message, error.exit_code))
            return
        self._run = LoadRun(settings, whole)
        self._greenlet = gevent.spawn(self._play, self._run)

    def go(self, start: datetime) -> None:
        """Send, with second 0 at `start`."""
        if self._run is not None:
            self._run.go(start)

    def stop(self) -> None:
        """End soon."""
        if self._run is not None:
            self._run.stop()

    def halt(self) -> None:
        """End, and wait until everything is written."""
        self.stop()
        if self._greenlet is not None:
            self._greenlet.join(timeout=HALT_SECONDS)

    def _play(self, run: LoadRun) -> None:
        """Watch a share from its beginning to its end; whatever happens, say that it is done."""
        try:
            result = self._watch(run)
        except Exception:  # noqa: BLE001 - the top of the greenlet; the trace is kept
            result = Result(0, 0, 0, f"a fault of kvbench:\n{traceback.format_exc()}", 1)
        self._say("kvbench_done", result)

    def _watch(self, run: LoadRun) -> Result:
        """Show what comes of a share until it has ended, and return how it went."""
        thread = gevent.get_hub().threadpool.spawn(run.run)
        told = False
        while not thread.ready():
            if run.prepared and not told:
                told = True
                self._say("kvbench_prepared", None)
            self._show(run)
            gevent.sleep(PULSE)
        self._show(run)
        result: Result = thread.get()
        return result

    def _say(self, what: str, result: Result | None) -> None:
        """Tell the conductor."""
        data = None if result is None else dataclasses.asdict(result)
        self._environment.runner.send_message(what, data)

    def _show(self, run: LoadRun) -> None:
        """Show in Locust's tables what has been written since the last look."""
        while run.outbox:
            for entry in entries(run.outbox.popleft()):
                self._environment.events.request.fire(context={}, response_length=0, **entry)


def entries(row: TurnRecord) -> list[dict[str, object]]:
    """Return what Locust's tables get to know of a row: the whole answer, and its first token.

    Turns that did not come to their end because the run was stopped are nobody's failure.
    """
    if row.error == "not_sent" or row.error_message == STOPPED:
        return []
    name = "turn 1" if row.turn == 1 else "turn 2+"
    error = None
    if not row.ok:
        error = TurnError(row.error if row.status in {None, 200} else f"{row.error} {row.status}")
    begun = row.intended_s if row.sent_s is None else row.sent_s
    end = row.end_s if row.last_token_s is None or error else row.last_token_s
    shown: list[dict[str, object]] = [
        {
            "request_type": "E2E",
            "name": name,
            "response_time": 1000 * ((begun if end is None else end) - begun),
            "exception": error,
        }
    ]
    if error is None and row.ttft_s is not None:
        shown.append(
            {
                "request_type": "TTFT",
                "name": name,
                "response_time": 1000 * row.ttft_s,
                "exception": None,
            }
        )
    return shown
