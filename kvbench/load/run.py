"""One worker's share of one run, in a thread of its own with an event loop of its own.

Locust lives on gevent, in the main thread, and gevent's loop is no place to measure in. So the
share runs in a real thread under uvloop and touches nothing of gevent's: what it has to say lies
in plain attributes and in a deque, and what it is told it finds in attributes that it looks at
every `LOOK` seconds. (Rebinding an attribute and appending to a deque are atomic.)

    prepare → `prepared` is set → wait for `go` → send → rows and testimony are written → Result

A fault of our own, or a disk that takes no more rows, ends the share and becomes `Result.error`;
it never passes for a run that went well.
"""

from __future__ import annotations

import asyncio
import gc
import traceback
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import uvloop

from kvbench.clock import WallClock, utc
from kvbench.errors import KvbenchError
from kvbench.load.desk import Desk
from kvbench.load.dispatch import Dispatcher
from kvbench.load.outcome import STOPPED
from kvbench.load.preparation import connect, find_model, manifest, prepare
from kvbench.load.request import RequestForm
from kvbench.load.target import Target
from kvbench.load.timers import LoopTimers
from kvbench.load.witness import Witness
from kvbench.records.writer import RowWriter

if TYPE_CHECKING:
    from datetime import datetime

    from kvbench.load.client import Client
    from kvbench.load.preparation import Prepared
    from kvbench.load.settings import Settings
    from kvbench.records.manifest import Manifest
    from kvbench.records.run import RunFolder
    from kvbench.records.schema import TurnRecord
    from kvbench.workload.plan import Plan

LOOK = 0.02  # seconds between two looks at what we are told


@dataclass(frozen=True, slots=True)
class Share:
    """Which part of which run.

    Attributes:
        folder: Where rows go.
        worker: Number of the worker, from 0.
        workers: How many there are.
        command: The command line, where a manifest is wanted of this worker; else None.
    """

    folder: RunFolder
    worker: int
    workers: int
    command: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Result:
    """How it went.

    Attributes:
        planned: Turns of the share.
        rows: Rows written.
        failed: Of those, turns that were not answered in full.
        error: Why rows are missing, in a sentence; None if none are.
        exit_code: The code that goes with the error.
    """

    planned: int
    rows: int
    failed: int
    error: str | None = None
    exit_code: int = 0


class LoadRun:
    """Runs a share. `run` belongs into a thread; everything else may be used from another one.

    Attributes:
        outbox: Rows written, for those who watch; they take them out.
        prepared: Whether everything is ready to begin.
        manifest: What the run is, if it was asked for; from when it is prepared.
        planned: Turns of the share; from when it is prepared.
        witness: Watches the sending; None before it has begun.
    """

    def __init__(self, settings: Settings, share: Share) -> None:
        self._settings = settings
        self._share = share
        self._start: datetime | None = None
        self._stop = False
        self._clock = WallClock()
        self._rows = 0
        self._failed = 0
        self._crash: BaseException | None = None
        self.outbox: deque[TurnRecord] = deque()
        self.prepared = False
        self.manifest: Manifest | None = None
        self.planned = 0
        self.witness: Witness | None = None

    def go(self, start: datetime) -> None:
        """Begin, with second 0 at `start`, which should be some tenths of a second ahead."""
        self._start = start

    def stop(self) -> None:
        """End soon; turns without a record get one that says so."""
        self._stop = True

    def run(self) -> Result:
        """Do it all, and return how it went; never raises for what it did itself."""
        loop = uvloop.new_event_loop()
        try:
            loop.run_until_complete(self._main())
        except KvbenchError as error:
            self._crash = error
        except Exception as error:  # noqa: BLE001 - the top of the thread; the trace is kept
            self._crash = error
        finally:
            loop.close()
            gc.unfreeze()
        return self._result()

    def _result(self) -> Result:
        """Return how it went."""
        counts = (self.planned, self._rows, self._failed)
        error = self._crash
        if isinstance(error, KvbenchError):
            hint = f" (hint: {error.hint})" if error.hint else ""
            return Result(*counts, error.message + hint, error.exit_code)
        if error is not None:
            return Result(*counts, "".join(traceback.format_exception(error)), 1)
        if self._rows != self.planned:
            return Result(*counts, f"{self._rows} rows for {self.planned} planned turns", 1)
        return Result(*counts)

    async def _main(self) -> None:
        """Prepare, send, and close."""
        settings, share = self._settings, self._share
        prepared = prepare(settings)
        target = Target.parse(settings.host)
        form = RequestForm(target, prepared.plan.api, settings.key())
        client = await connect(target, settings, self._clock)
        try:
            model, window = await find_model(client, form, target, settings.model)
            if share.command is not None:
                self.manifest = manifest(settings, prepared, model, list(share.command))
            with RowWriter(share.folder.rows_path(share.worker)) as writer:
                await self._send(prepared, client, form, model, writer, window=window)
        finally:
            client.close()

    async def _send(
        self,
        prepared: Prepared,
        client: Client,
        form: RequestForm,
        model: str,
        writer: RowWriter,
        *,
        window: int | None,
    ) -> None:
        """Wait for "go", send the share, and testify."""
        settings, share = self._settings, self._share
        plan = prepared.plan.part(share.worker, share.workers)
        self.planned = len(plan.turns)
        gc.collect()
        gc.freeze()  # the plan stays: no collection in mid-run shall walk through it
        self.prepared = True
        while self._start is None and not self._stop:  # noqa: ASYNC110 - told by a thread
            await asyncio.sleep(LOOK)
        start = self._clock.now() + ((self._start or utc()) - utc()).total_seconds()

        def write(row: TurnRecord) -> None:
            """Have a row safe on disk, then counted, then shown."""
            writer.append(row)
            self._rows += 1
            self._failed += not row.ok
            self.outbox.append(row)

        desk = Desk(
            plan,
            bodies=prepared.renderer,
            form=form,
            model=model,
            salt=share.folder.id if settings.isolation == "salt" else None,
            run_id=share.folder.id,
            worker=share.worker,
            start=start,
            pod=Target.parse(settings.host).authority,
            expected=prepared.expected,
            write=write,
            window=window,
        )
        await self._dispatch(plan, start, client, desk)

    async def _dispatch(self, plan: Plan, start: float, client: Client, desk: Desk) -> None:
        """Send a plan, and testify."""
        witness = self.witness = Witness()
        loop = asyncio.get_running_loop()
        finished = asyncio.Event()
        dispatcher = Dispatcher(
            plan,
            start=start,
            clock=self._clock,
            timers=LoopTimers(loop, self._clock),
            sender=client,
            desk=desk,
            witness=witness,
            max_in_flight=self._settings.max_in_flight,
            on_finished=finished.set,
        )
        loop.set_exception_handler(self._on_fault)
        dispatcher.begin()
        await self._watch(dispatcher, finished)
        said = witness.testify(self._share.worker, kernel_stamps=client.kernel_stamps)
        self._share.folder.write_testimony(said)

    async def _watch(self, dispatcher: Dispatcher, finished: asyncio.Event) -> None:
        """Wait for the end; stop when told to, break off when something is broken."""
        while not finished.is_set():
            if self._stop and self._crash is None:
                dispatcher.stop(STOPPED)
            if self._crash is not None:
                dispatcher.abandon()
                raise self._crash
            await asyncio.sleep(LOOK)

    def _on_fault(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Hear of an exception in a callback of the loop: the run is broken."""
        error = context.get("exception")
        self._crash = error or RuntimeError(str(context.get("message")))
