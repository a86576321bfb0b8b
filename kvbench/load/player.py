"""A worker's side of Locust: plays one share when the conductor says so, and shows how it goes.

Lives on gevent, in the main thread; the share itself runs in a real thread (`kvbench.load.run`).
What is shown in Locust's tables is for watching: two lines a turn, with Locust's rounding. What is
judged are the rows.
"""

from __future__ import annotations

import dataclasses
import logging
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gevent
import msgspec

from kvbench.clock import WallClock
from kvbench.errors import InputError, KvbenchError
from kvbench.load.outcome import STOPPED
from kvbench.load.run import LoadRun, Result, Share
from kvbench.load.settings import Settings
from kvbench.load.shipping import MARK, Shipper
from kvbench.load.tally import Tally
from kvbench.records.run import RunFolder
from kvbench.records.schema import OWN_FAULTS
from kvbench.workload.load import fingerprint

if TYPE_CHECKING:
    from datetime import datetime

    from kvbench.records.schema import TurnRecord

PULSE = 0.1  # seconds between two looks at the thread
TELL_SECONDS = 0.5  # seconds between two tallies to the master
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
        self._clock = WallClock()
        self._run: LoadRun | None = None
        self._greenlet: Any = None

    def start(self, host: str, options: dict[str, object], share: dict[str, Any]) -> None:
        """Begin with a share: make everything ready, and say so."""
        try:
            settings = Settings.parse(host, options)
            folder, shared = _folder(share)
            if not shared:
                _check_source(settings, share["sha256"])
            command = None if share["command"] is None else tuple(share["command"])
            whole = Share(folder, share["worker"], share["workers"], command)
        except KvbenchError as error:
            failed = Result(0, 0, 0, error.message, error.exit_code)
            self._say("kvbench_done", dataclasses.asdict(failed))
            return
        self._run = LoadRun(settings, whole)
        shipper = None if shared else Shipper(folder, whole.worker)
        self._greenlet = gevent.spawn(self._play, self._run, _Telling(whole.worker, shipper))

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

    def _play(self, run: LoadRun, telling: _Telling) -> None:
        """Watch a share from its beginning to its end; whatever happens, say that it is done."""
        try:
            result = self._watch(run, telling)
        except Exception:  # noqa: BLE001 - the top of the greenlet; the trace is kept
            result = Result(0, 0, 0, f"a fault of kvbench:\n{traceback.format_exc()}", 1)
        self._say("kvbench_done", dataclasses.asdict(result))

    def _watch(self, run: LoadRun, telling: _Telling) -> Result:
        """Show what comes of a share until it has ended, and return how it went."""
        thread = gevent.get_hub().threadpool.spawn(run.run)
        told = False
        while not thread.ready():
            if run.prepared and not told:
                told = True
                manifest = None if run.manifest is None else msgspec.json.encode(run.manifest)
                self._say("kvbench_prepared", {"planned": run.planned, "manifest": manifest})
            self._show(run, telling)
            if self._clock.now() >= telling.next_at:
                self._tell(run, telling)
            gevent.sleep(PULSE)
        self._show(run, telling)
        self._tell(run, telling)
        for parcel in telling.shipper.rest() if telling.shipper else ():
            self._say("kvbench_parcel", parcel.encode())
        result: Result = thread.get()
        return result

    def _say(self, what: str, data: object) -> None:
        """Tell the conductor."""
        self._environment.runner.send_message(what, data)

    def _show(self, run: LoadRun, telling: _Telling) -> None:
        """Show in Locust's tables, and add up, what has been written since the last look."""
        while run.outbox:
            row = run.outbox.popleft()
            telling.tally.add(row)
            for entry in entries(row):
                self._environment.events.request.fire(context={}, response_length=0, **entry)

    def _tell(self, run: LoadRun, telling: _Telling) -> None:
        """Tell the conductor what has been added up since the last time."""
        tally, witness = telling.tally, run.witness
        telling.tally = Tally()
        telling.next_at = self._clock.now() + TELL_SECONDS
        if witness is None:
            return
        tally.due, tally.begun = witness.due, witness.begun
        tally.in_flight = witness.in_flight
        tally.loop_delay_s, witness.recent_delay = witness.recent_delay, 0.0
        tally.cpu_s = time.process_time()
        self._say("kvbench_live", {"worker": telling.worker, "tally": tally.encode()})
        for parcel in telling.shipper.rows() if telling.shipper else ():
            self._say("kvbench_parcel", parcel.encode())


@dataclasses.dataclass(slots=True)
class _Telling:
    """What is to be told of a share.

    Attributes:
        worker: Its number.
        shipper: Brings its rows to the master; None where they are there.
        tally: What was filed since the master was last told.
        next_at: When it is told next.
    """

    worker: int
    shipper: Shipper | None
    tally: Tally = dataclasses.field(default_factory=Tally)
    next_at: float = 0.0


def _folder(share: dict[str, Any]) -> tuple[RunFolder, bool]:
    """Return where a share's rows go, and whether that is the master's own folder.

    Raises:
        InputError: It cannot be made.
    """
    path = Path(share["folder"])
    try:
        path.mkdir(parents=True, exist_ok=True)
        return RunFolder(path), (path / MARK).read_text() == share["mark"]
    except FileNotFoundError:
        return RunFolder(path), False
    except OSError as error:
        raise InputError(
            f"cannot be written to: {error.strerror or error}",
            where=str(path),
            hint="a load worker needs a folder of the same name as the master's",
        ) from error


def _check_source(settings: Settings, sha256: str) -> None:
    """Refuse to send another plan than the master's.

    Raises:
        InputError: The file here is not the file there.
    """
    if fingerprint(settings.source) != sha256:
        raise InputError(
            "is not the master's file of that name",
            where=str(settings.source),
            hint="copy it to all machines: every worker makes the plan itself",
        )


def entries(row: TurnRecord) -> list[dict[str, object]]:
    """Return what Locust's tables get to know of a row: the whole answer, and its first token.

    Turns that did not come to their end because the run was stopped are nobody's failure.
    """
    if row.error in OWN_FAULTS or row.error_message == STOPPED:
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
