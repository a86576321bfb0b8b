"""`docker compose up`, with a look around first: what would fail is said before it does.

`Surroundings` is what a look finds; `trouble` is what is wrong with it, pure. Settings are those
that Compose itself takes: the environment over `.env`. What can only be seen afterwards (a model
that is not there, too little memory on a GPU) is read from the logs of what did not become well.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvbench.errors import InputError, TargetError
from kvbench.stack import topology
from kvbench.stack.gpus import count_gpus
from kvbench.stack.trouble import known_trouble

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

PROFILES = ("gpu", "cpu", "sim")
OLDEST = (2, 20)
"""Compose: from here on a service may depend on one that another profile has."""
LOOK_SECONDS = 3.0
"""Between two looks at parts that may have ended while Compose waits for them."""
PORTS = {
    "ROUTER_PORT": topology.ROUTER_PORT,
    "LOCUST_PORT": topology.LOCUST_PORT,
    "PROMETHEUS_PORT": topology.PROMETHEUS_PORT,
    "ALERTMANAGER_PORT": topology.ALERTMANAGER_PORT,
    "GRAFANA_PORT": topology.GRAFANA_PORT,
}
"""Variables that set a published port, with their defaults."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a look around finds.

    Attributes:
        file: Whether docker-compose.yml is here.
        docker: Whether there is a `docker` command.
        engine: What keeps the engine from answering, None if it answers.
        version: Of Compose, None where there is none.
        settings: Variables, as Compose takes them; COMPOSE_PROFILES is missing without a .env.
        gpus: How many GPUs NVIDIA's driver has.
        toolkit: Whether containers can be given a GPU.
        taken: Variables of ports that somebody else listens on.
    """

    file: bool = True
    docker: bool = True
    engine: str | None = None
    version: tuple[int, ...] | None = OLDEST
    settings: Mapping[str, str] = field(default_factory=dict)
    gpus: int = 0
    toolkit: bool = False
    taken: tuple[str, ...] = ()


def trouble(found: Surroundings) -> InputError | None:
    """Return what will fail, and the way out; None if nothing is in sight."""
    said = _without_docker(found) or _settings(found) or _gpus(found) or _ports(found)
    return InputError(said[0], hint=said[1]) if said else None


def _without_docker(found: Surroundings) -> tuple[str, str] | None:
    if not found.file:
        return "there is no docker-compose.yml here", "run this in a checkout of kvbench"
    if not found.docker:
        return "docker is not installed", "https://docs.docker.com/engine/install"
    if found.engine is not None:
        way = "systemctl start docker; and are you in the group `docker`?"
        return f"Docker's engine does not answer: {found.engine}", way
    if found.version is None or found.version < OLDEST:
        got = ".".join(map(str, found.version)) if found.version else "none"
        return f"expected Docker Compose 2.20 or newer, got {got}", "install docker-compose-plugin"
    return None


def _settings(found: Surroundings) -> tuple[str, str] | None:
    chosen = found.settings.get("COMPOSE_PROFILES")
    if chosen is None:
        return "there is no .env", (
            "cp .env.example .env for vLLM on GPUs; or COMPOSE_PROFILES=sim before the command"
        )
    for profile in filter(None, chosen.split(",")):
        if profile not in PROFILES:
            return f"COMPOSE_PROFILES: expected some of {', '.join(PROFILES)}, got {profile!r}", (
                "sim needs no GPU; empty starts no pods"
            )
    block = found.settings.get("KVBENCH_BLOCK_SIZE", "")
    if "cpu" in chosen and (not block.isdecimal() or int(block) % 32):
        got = block or "nothing"
        return f"KVBENCH_BLOCK_SIZE: profile cpu expects a multiple of 32, got {got}", (
            "KVBENCH_BLOCK_SIZE=32 in .env: vLLM's attention on a CPU takes nothing else"
        )
    return None


def _gpus(found: Surroundings) -> tuple[str, str] | None:
    if "gpu" not in found.settings.get("COMPOSE_PROFILES", ""):
        return None
    if not found.gpus:
        return "profile gpu: NVIDIA's driver shows no GPU", (
            "does nvidia-smi? COMPOSE_PROFILES=sim needs none"
        )
    if not found.toolkit:
        return "profile gpu: containers cannot be given a GPU", (
            "install nvidia-container-toolkit, then: nvidia-ctk runtime configure && "
            "systemctl restart docker"
        )
    for name, default in (("GPU_1", "0"), ("GPU_2", "1")):
        number = found.settings.get(name) or default
        if number.isdecimal() and int(number) >= found.gpus:
            return f"{name}: this machine has {found.gpus} GPU, and number {number} is none", (
                f"{name}=0 and VLLM_GPU_MEMORY_UTILIZATION=0.45 in .env: two pods on one GPU"
            )
    return None


def _ports(found: Surroundings) -> tuple[str, str] | None:
    for name in found.taken:
        port = int(found.settings.get(name) or PORTS[name])
        return f"port {port} is taken", f"{name}={port + 10000} in .env, or end what listens there"
    return None


def look_around(folder: Path, environ: Mapping[str, str] = os.environ) -> Surroundings:
    """Look at what `docker compose up` in `folder` would meet."""
    settings = {**read_env(folder / ".env"), **environ}
    if not shutil.which("docker"):
        return Surroundings(file=(folder / "docker-compose.yml").is_file(), docker=False)
    engine = _docker(folder, "info", "--format", "{{json .Runtimes}}")
    version = re.match(r"v?(\d+)\.(\d+)", _docker(folder, "compose", "version", "--short").stdout)
    return Surroundings(
        file=(folder / "docker-compose.yml").is_file(),
        engine=None if engine.returncode == 0 else engine.stderr.strip().splitlines()[-1],
        version=tuple(map(int, version.groups())) if version else None,
        settings=settings,
        gpus=count_gpus(),
        toolkit="nvidia" in engine.stdout or shutil.which("nvidia-container-runtime") is not None,
        taken=() if _runs(folder) else tuple(_taken(settings)),
    )


def read_env(path: Path) -> dict[str, str]:
    """Return the variables of a `.env`, none where there is no such file."""
    if not path.is_file():
        return {}
    lines = re.findall(r"^(?:export +)?(\w+)=(.*?)(?: +#.*)?$", path.read_text(), re.MULTILINE)
    return {name: value.strip().strip("\"'") for name, value in lines}


def up(folder: Path) -> dict[str, str]:
    """Start the stack, and return where people look: URL by name.

    Raises:
        InputError: It would not start; nothing was started.
        TargetError: A part did not become well; its log tells why, where that is known.
    """
    found = look_around(folder)
    if wrong := trouble(found):
        raise wrong
    command = ["docker", "compose", "up", "--detach", "--wait", "--build"]
    with subprocess.Popen(command, cwd=folder) as process:  # noqa: S603 - our own words
        while (code := _ended(process)) is None:
            if (part := _broken(folder, ended=True)) is not None:  # Compose waits for its return
                process.terminate()
                raise _failure(folder, part)
    if code:
        part = _broken(folder, ended=False)
        if part is None:
            raise TargetError("docker compose up has failed", hint="what it printed says why")
        raise _failure(folder, part)
    return {
        name.removesuffix("_PORT").lower(): f"http://{_host(found.settings)}:"
        f"{found.settings.get(name) or port}"
        for name, port in PORTS.items()
    }


def _ended(process: subprocess.Popen[bytes]) -> int | None:
    """Return the exit code of a process, None if it still runs after a while."""
    try:
        return process.wait(LOOK_SECONDS)
    except subprocess.TimeoutExpired:
        return None


def _broken(folder: Path, *, ended: bool) -> Mapping[str, str] | None:
    """Return a part that is not well, as Compose describes it; None if there is none.

    Args:
        folder: Of the stack.
        ended: Only one that has ended by itself. Otherwise one that does not answer counts, too:
            only if none has ended, for what has ended makes others sick.
    """
    listing = _docker(folder, "compose", "ps", "--all", "--format", "json").stdout
    parts = [json.loads(line) for line in listing.splitlines() if line.startswith("{")]
    for part in parts:
        if part["State"] in {"exited", "restarting"} and part["ExitCode"]:
            return dict(part)
    sick = (part for part in parts if part["Health"] == "unhealthy" and not ended)
    return next(sick, None)


def _failure(folder: Path, part: Mapping[str, str]) -> TargetError:
    """Return the error that names a part which is not well, and what its log means."""
    service = part["Service"]
    log = _docker(folder, "compose", "logs", "--no-log-prefix", "--tail=300", service)
    return TargetError(
        f"{service} is not well: {part['Status']}",
        hint=known_trouble(log.stdout + log.stderr) or f"docker compose logs {service}",
    )


def _docker(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run docker; it may fail."""
    return subprocess.run(  # noqa: S603 - our own words, no shell
        ["docker", *words],  # noqa: S607 - docker of PATH
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def _runs(folder: Path) -> bool:
    """Return whether the stack is up: then the ports are taken by itself."""
    return bool(_docker(folder, "compose", "ps", "--quiet").stdout.strip())


def _host(settings: Mapping[str, str]) -> str:
    return settings.get("BIND") or "127.0.0.1"


def _taken(settings: Mapping[str, str]) -> list[str]:
    """Return the variables of ports that somebody listens on."""
    taken = []
    for name, default in PORTS.items():
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(ValueError):
                try:
                    probe.bind((_host(settings), int(settings.get(name) or default)))
                except OSError:
                    taken.append(name)
    return taken
