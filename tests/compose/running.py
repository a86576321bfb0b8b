"""docker-compose.yml with profile sim, as a project of its own on ports of its own."""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

from kvbench.stack.process import kvbench_command

ROOT = Path(__file__).parents[2]
PROJECT = "kvbench-test"
GRAFANA = """
services: # its image is not to be had everywhere; what else belongs to it is there
  grafana:
    image: kvbench:0.0.0-test
    pull_policy: never
    entrypoint: [sleep, infinity]
    command: []
    healthcheck: {test: [CMD, "true"], interval: 5s}
"""


def wait_until(condition, within: float):
    """Return what `condition` returns once that is true; it may fail to connect until then."""
    over = time.monotonic() + within
    while True:
        try:
            if found := condition():
                return found
        except (OSError, ValueError):
            pass
        assert time.monotonic() < over, f"not within {within} s: {condition.__doc__}"
        time.sleep(0.5)


def ask(url: str, form: dict[str, str] | None = None):
    """GET a URL, or POST a form, and return the JSON that comes back."""
    data = None if form is None else urllib.parse.urlencode(form).encode()
    with urllib.request.urlopen(url, data, timeout=10) as answer:
        return json.load(answer)


@dataclass
class Composed:
    """The stack.

    Attributes:
        ports: Published ports, by the variable that sets each.
        override: File that gets what stands in for Grafana.
    """

    ports: dict[str, int]
    override: Path
    env: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        ports = {name: str(port) for name, port in self.ports.items()}
        bundle = os.environ.get("CA_BUNDLE") or os.environ.get("PIP_CERT") or "/dev/null"
        self.override.write_text(GRAFANA)
        self.env = {
            **os.environ,
            **ports,
            "COMPOSE_PROJECT_NAME": PROJECT,
            "COMPOSE_FILE": f"docker-compose.yml:{self.override}",
            "COMPOSE_PROFILES": "sim",
            "KVBENCH_VERSION": "0.0.0-test",
            "KVBENCH_COMPILED": "1",
            "CA_BUNDLE": bundle,
        }

    def compose(self, *words: str) -> str:
        """Run `docker compose`; return what it prints."""
        command = ["docker", "compose", "--env-file", "/dev/null", *words]
        done = subprocess.run(
            command, cwd=ROOT, env=self.env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{' '.join(words)}\n{done.stderr[-3000:]}"
        return done.stdout

    def up(self) -> None:
        """Start it all, and wait until it is well."""
        try:
            self.compose("up", "--detach", "--wait", "--quiet-pull")
        except AssertionError as error:
            error.add_note(self.compose("logs", "--tail", "20"))
            raise

    def kvbench(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a verb of kvbench with the stack's settings, and others beside them."""
        return subprocess.run(
            kvbench_command(*words),
            cwd=ROOT,
            env={**self.env, **env},
            capture_output=True,
            text=True,
            check=False,
        )

    def containers(self) -> dict[str, dict]:
        """Return what Docker knows of each container, by its name without the project's."""
        ids = self.compose("ps", "--all", "--quiet").split()
        if not ids:
            return {}
        told = subprocess.run(["docker", "inspect", *ids], capture_output=True, check=True).stdout
        return {one["Name"].removeprefix(f"/{PROJECT}-"): one for one in json.loads(told)}

    def url(self, part: str) -> str:
        """Return where a part answers, by the name of its variable: ROUTER_PORT."""
        return f"http://127.0.0.1:{self.ports[part]}"

    def query(self, expression: str) -> dict[str, float]:
        """Ask Prometheus; return values by `instance`, or by "" where there is none."""
        where = urllib.parse.urlencode({"query": expression})
        answer = ask(f"{self.url('PROMETHEUS_PORT')}/api/v1/query?{where}")
        return {
            row["metric"].get("instance", ""): float(row["value"][1])
            for row in answer["data"]["result"]
        }


def ours(kind: str) -> list[str]:
    """Return the containers, networks or volumes that belong to the project."""
    label = f"label=com.docker.compose.project={PROJECT}"
    command = ["docker", kind, "ls", "--quiet", "--filter", label]
    command += ["--all"] if kind == "container" else []
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
