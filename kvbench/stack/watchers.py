"""What watches a local stack: exporter, Prometheus with the rules, Alertmanager.

Prometheus and Alertmanager are the programs of this machine (Debian: `prometheus`,
`prometheus-alertmanager`). What they store goes to the folder of the stack's logs, and with it.
"""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from typing import TYPE_CHECKING, Self

import yaml

from kvbench.alerts import pack
from kvbench.alerts.settings import Settings
from kvbench.errors import InputError
from kvbench.stack.foreign import foreign_command
from kvbench.stack.local import READY_SECONDS, free_ports
from kvbench.stack.process import Child
from kvbench.stack.scraping import Addresses, prometheus_config
from kvbench.stack.topology import ExporterSpec

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from kvbench.stack.local import LocalStack

ALERTMANAGER_CONFIG = {"route": {"receiver": "page"}, "receivers": [{"name": "page"}]}
"""Nobody is told of anything: alerts stand on Alertmanager's page."""


def installed(*names: str) -> str:
    """Return the first of these programs that this machine has.

    Raises:
        InputError: It has none.
    """
    for name in names:
        if found := shutil.which(name):
            return found
    raise InputError(
        f"--watch: {names[0]} is not installed",
        hint="Debian and Ubuntu: apt-get install prometheus prometheus-alertmanager",
    )


class Watchers:
    """Watches a local stack from when it is entered until it is left.

    Args:
        stack: Whom to watch; it runs.
        folder: For logs, settings and data.
        host: Address to listen on.
        ports: Of exporter, Prometheus and Alertmanager; None takes free ones.

    Attributes:
        children: Exporter, Alertmanager, Prometheus.
    """

    def __init__(
        self, stack: LocalStack, folder: Path, host: str, ports: tuple[int, int, int] | None
    ) -> None:
        self._watched = stack
        self._folder = folder
        self._host = host
        self._ports = ports
        self._stack = ExitStack()
        self.children: list[Child] = []

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for child in self.children:
            child.ask_to_stop()
        self._stack.close()

    def _start(self) -> None:
        """Write the settings, start all three, and wait until they are ready."""
        prometheus = installed("prometheus")
        alertmanager = installed("alertmanager", "prometheus-alertmanager")
        exporter_port, *ports = self._ports or (0, *free_ports(self._host, 2))
        places = [f"{self._host}:{port}" for port in ports]
        watched, folder = self._watched, self._folder
        command = ExporterSpec().command(self._host, exporter_port, watched.url, watched.sources)
        exporter = self._child("exporter", command)
        at = Addresses(
            exporter=exporter.wait_ready(READY_SECONDS).removeprefix("http://"),
            router=watched.url.removeprefix("http://"),
            load=None,
            prometheus=places[0],
            alertmanager=places[1],
        )
        self._write(at)
        self._foreign(
            "alertmanager",
            places[1],
            [
                alertmanager,
                f"--config.file={folder / 'alertmanager.yml'}",
                f"--storage.path={folder / 'alertmanager'}",
                f"--web.listen-address={places[1]}",
                "--cluster.listen-address=",
            ],
        )
        self._foreign(
            "prometheus",
            places[0],
            [
                prometheus,
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'prometheus'}",
                f"--web.listen-address={places[0]}",
            ],
        )
        for child in self.children[1:]:
            child.wait_ready(READY_SECONDS)

    def _write(self, at: Addresses) -> None:
        """Write the settings of Prometheus and Alertmanager, and the rules."""
        for name, text in pack.files(Settings()).items():
            if name.endswith(".rules.yml"):
                (self._folder / name).write_text(text)
        config = prometheus_config(at, str(self._folder / "*.rules.yml"))
        (self._folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        (self._folder / "alertmanager.yml").write_text(yaml.safe_dump(ALERTMANAGER_CONFIG))

    def _foreign(self, name: str, place: str, command: list[str]) -> None:
        """Start a program that is not ours."""
        self._child(name, foreign_command(f"http://{place}", "/-/ready", command))

    def _child(self, name: str, command: list[str]) -> Child:
        """Start a child."""
        child = Child(name, command, self._folder / f"{name}.log")
        self.children.append(self._stack.enter_context(child))
        return child
