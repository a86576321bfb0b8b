"""The locustfile: a plan as Locust's load.

    locust -f workloads/locustfile.py --workload workloads/chat.yaml --host http://127.0.0.1:8000

Locust brings the command line, the web UI, its statistics, and workers on other processes and
machines. It does not decide what is sent when: the plan does, open-loop, and the number of users
has no influence on it. The one user class stands for the plan and idles.

Rules:

- Locust logs exceptions in listeners and goes on. Ours are caught here and make the process end
  with a code other than 0: a broken recorder never looks like a good run.
- Exit code: that of the error if rows are missing; otherwise Locust's own (1 if a turn failed,
  unless `--exit-code-on-error` says otherwise).
- Ctrl-C, SIGTERM, `--run-time` and the web UI's stop button end a run in the same way: what was
  not sent gets its row, what was sent and not answered is cut, and everything is written.
- With KVBENCH_EXIT_WITH_PARENT=1 end-of-file on standard input is such an end, too.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from datetime import datetime
from typing import TYPE_CHECKING, Any

import gevent
import locust.log
from gevent.socket import wait_read
from locust import User, constant, events, task
from locust.runners import WorkerRunner

from kvbench.errors import KvbenchError
from kvbench.load.conductor import Conductor, log
from kvbench.load.player import Player
from kvbench.load.run import Result
from kvbench.load.settings import OPTIONS, Offered, metrics_address, workload_files
from kvbench.load.web_ui import attach, serve_metrics

if TYPE_CHECKING:
    from collections.abc import Callable


class Conversations(User):  # type: ignore[misc] # Locust is not typed for us
    """Stands for the whole plan; how many of it there are makes no difference."""

    wait_time = constant(0)

    @task  # type: ignore[untyped-decorator] # Locust is not typed for us
    def idle(self) -> None:
        """Do nothing: the plan is sent beside Locust's users."""
        gevent.sleep(1)


def add_options(parser: Any) -> None:
    """Add our flags; they are fields of the web UI's start form as well."""
    for option in OPTIONS:
        choices = option.choices
        if option.name == "workload":
            choices = Offered(workload_files(sys.argv))
        parser.add_argument(
            option.flag,
            default=option.default,
            help=option.help,
            choices=choices or None,
            metavar="FILE" if option.name == "workload" else None,
            include_in_web_ui=option.shown,
        )


class Glue:
    """Joins Locust's events and messages with the conductor and the player of this process."""

    def __init__(self, environment: Any) -> None:
        self._environment = environment
        self._conducts = not isinstance(environment.runner, WorkerRunner)
        self._conductor = Conductor(environment)
        self._player = Player(environment)
        self._fault = False

    def attach(self) -> None:
        """Listen."""
        hooks, runner = self._environment.events, self._environment.runner
        hooks.test_stopping.add_listener(self._safe(self._on_stopping))
        hooks.quitting.add_listener(self._safe(self._on_quitting))
        if self._conducts:
            hooks.test_start.add_listener(self._safe(self._conductor.start))
            runner.register_message("kvbench_prepared", self._hear(self._on_prepared))
            runner.register_message("kvbench_live", self._hear(self._on_live))
            runner.register_message("kvbench_parcel", self._hear(self._on_parcel))
            runner.register_message("kvbench_done", self._hear(self._on_done))
            if self._environment.web_ui is not None:
                attach(self._environment, self._conductor)
            address = metrics_address(vars(self._environment.parsed_options))
            if address is not None:
                log.warning("metrics are at %s", serve_metrics(address, self._conductor.live))
        if not hasattr(runner, "clients"):
            runner.register_message("kvbench_start", self._hear(self._on_start))
            runner.register_message("kvbench_go", self._hear(self._on_go))
            runner.register_message("kvbench_stop", self._hear(self._on_stop))
        if os.environ.get("KVBENCH_EXIT_WITH_PARENT") == "1":
            gevent.spawn(_end_with_parent)

    def _on_prepared(self, worker: str, data: Any) -> None:
        """Pass on that a worker is ready."""
        self._conductor.on_prepared(worker, data)

    def _on_live(self, _worker: str, data: Any) -> None:
        """Pass on what a worker has filed."""
        self._conductor.on_live(data)

    def _on_parcel(self, _worker: str, data: Any) -> None:
        """Pass on rows of a worker on another machine."""
        self._conductor.on_parcel(data)

    def _on_done(self, worker: str, data: Any) -> None:
        """Pass on how a worker's share went."""
        self._conductor.on_done(worker, Result(**data))

    def _on_start(self, _sender: str, data: Any) -> None:
        """Pass on a share."""
        self._player.start(data["host"], data["options"], data["share"])

    def _on_go(self, _sender: str, data: Any) -> None:
        """Pass on when second 0 is."""
        self._player.go(datetime.fromisoformat(data["start"]))

    def _on_stop(self, _sender: str, _data: Any) -> None:
        """Pass on that it is to end."""
        self._player.stop()

    def _on_stopping(self) -> None:
        """End the run before Locust ends."""
        if self._conducts:
            self._conductor.halt()
        else:
            self._player.halt()

    def _on_quitting(self) -> None:
        """End the run, and decide the exit code unless Locust's own will do."""
        self._on_stopping()
        if self._fault or locust.log.unhandled_greenlet_exception:
            self._environment.process_exit_code = 1
        elif self._conductor.exit_code:
            self._environment.process_exit_code = self._conductor.exit_code

    def _safe(self, listener: Callable[[], None]) -> Callable[..., None]:
        """Return `listener` as Locust calls listeners of events, guarded."""

        def call(**_event: Any) -> None:
            self._try(listener)

        return call

    def _hear(self, listener: Callable[[str, Any], None]) -> Callable[..., None]:
        """Return `listener` as Locust calls listeners of messages, guarded."""

        def call(msg: Any, **_event: Any) -> None:
            self._try(listener, str(msg.node_id), msg.data)

        return call

    def _try(self, listener: Callable[..., None], *arguments: Any) -> None:
        """Call a listener; a fault of ours ends the run instead of vanishing in a log."""
        try:
            listener(*arguments)
        except Exception:  # noqa: BLE001 - Locust would swallow it; here it is kept and counts
            self._fault = True
            log.error("a fault of kvbench:\n%s", traceback.format_exc())
            gevent.spawn(self._environment.runner.quit)


def _end_with_parent() -> None:
    """End this process at end-of-file on standard input."""
    while True:
        wait_read(sys.stdin.fileno())
        if not os.read(sys.stdin.fileno(), 4096):
            os.kill(os.getpid(), signal.SIGTERM)
            return


def on_init(environment: Any, **_event: Any) -> None:
    """Join in, once Locust has its runner."""
    if environment.runner is None:
        return
    try:
        Glue(environment).attach()
    except KvbenchError as error:
        log.error("%s%s", error.message, f"\n  hint: {error.hint}" if error.hint else "")
        sys.exit(error.exit_code)


events.init_command_line_parser.add_listener(add_options)
events.init.add_listener(on_init)
