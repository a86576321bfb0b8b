"""What is said before `docker compose up` fails."""

from __future__ import annotations

import json
import os
import re
import socket
from dataclasses import replace

import pytest
from stack.composed import ROOT, read

from kvbench.errors import InputError, TargetError
from kvbench.stack import compose
from kvbench.stack.compose import Surroundings, look_around, read_env, trouble
from kvbench.stack.local import free_ports

WELL = Surroundings(settings={"COMPOSE_PROFILES": "sim"}, version=(2, 26))
ON_GPUS = replace(WELL, settings={"COMPOSE_PROFILES": "gpu"}, gpus=2, toolkit=True)


def with_settings(found: Surroundings, **settings: str) -> Surroundings:
    """Return the surroundings with other settings."""
    return replace(found, settings={**found.settings, **settings})


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(WELL, id="simulated pods"),
        pytest.param(ON_GPUS, id="GPUs"),
        pytest.param(with_settings(ON_GPUS, GPU_2="0"), id="two pods on one GPU"),
        pytest.param(with_settings(ON_GPUS, GPU_1="GPU-8f6c"), id="a GPU by its UUID"),
        pytest.param(with_settings(WELL, COMPOSE_PROFILES=""), id="no pods"),
        pytest.param(
            with_settings(WELL, COMPOSE_PROFILES="cpu", KVBENCH_BLOCK_SIZE="64"), id="a CPU"
        ),
    ],
)
def test_where_nothing_is_wrong_nothing_is_said(found):
    """The stack is started."""
    assert trouble(found) is None


CASES = {
    "no checkout": (replace(WELL, file=False), "no docker-compose.yml here", "checkout"),
    "no docker": (replace(WELL, docker=False), "docker is not installed", "install"),
    "no engine": (replace(WELL, engine="permission denied"), "permission denied", "group"),
    "no compose": (replace(WELL, version=None), "2.20 or newer, got none", "plugin"),
    "old compose": (replace(WELL, version=(2, 17)), "2.20 or newer, got 2.17", "plugin"),
    "no .env": (replace(WELL, settings={}), "there is no .env", "cp .env.example .env"),
    "no such profile": (with_settings(WELL, COMPOSE_PROFILES="sim,gpus"), "got 'gpus'", "sim"),
    "blocks of a CPU": (with_settings(WELL, COMPOSE_PROFILES="cpu"), "got nothing", "SIZE=32"),
    "no GPU": (replace(ON_GPUS, gpus=0), "shows no GPU", "COMPOSE_PROFILES=sim"),
    "no toolkit": (replace(ON_GPUS, toolkit=False), "given a GPU", "nvidia-container-toolkit"),
    "one GPU": (replace(ON_GPUS, gpus=1), "has 1 GPU, and number 1 is none", "GPU_2=0"),
    "port taken": (
        replace(WELL, taken=("LOCUST_PORT",)),
        "port 8089 is taken",
        "LOCUST_PORT=18089",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_will_fail_is_said_with_the_way_out(case):
    """One sentence and one hint."""
    found, message, hint = CASES[case]

    said = trouble(found)

    assert message in said.message
    assert hint in said.hint
    assert "\n" not in said.message + said.hint


def test_settings_are_read_as_compose_reads_them(tmp_path):
    """Comments, blanks and quotes; what is commented out is not set."""
    (tmp_path / ".env").write_text(
        "# a comment\nCOMPOSE_PROFILES=sim\n#GPU_1=0   # no\nexport A=b c  # said\nB='x y'\nC=\n"
    )

    assert read_env(tmp_path / ".env") == {
        "COMPOSE_PROFILES": "sim",
        "A": "b c",
        "B": "x y",
        "C": "",
    }
    assert read_env(tmp_path / "none") == {}


def test_the_example_is_read_too():
    """Copied as it is, it chooses GPUs."""
    assert read_env(ROOT / ".env.example") == {"COMPOSE_PROFILES": "gpu"}


def test_a_folder_without_a_compose_file_and_a_taken_port_are_seen(tmp_path):
    """The environment wins over `.env`, as it does with Compose."""
    (tmp_path / ".env").write_text("COMPOSE_PROFILES=gpu\n")
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = str(busy.getsockname()[1])
        environ = {"COMPOSE_PROFILES": "sim", "LOCUST_PORT": port}

        taken = compose._taken(environ)
        found = look_around(tmp_path, environ)

    assert "LOCUST_PORT" in taken
    assert not found.file
    assert not found.docker or found.settings["COMPOSE_PROFILES"] == "sim"


def test_ports_are_those_of_the_compose_file():
    """Each published port has its variable."""
    published = re.findall(r"\$\{(\w+_PORT):-(\d+)\}:", read("docker-compose.yml"))

    assert {name: int(port) for name, port in published} == compose.PORTS


DOCKER = """#!/bin/sh
case "$*" in
  info*) echo '{"runc":{}}' ;;
  "compose version"*) echo 2.29.1 ;;
  "compose ps --quiet") ;;
  "compose ps --all"*) cat ps.json ;;
  "compose logs"*) echo "said by $5"; cat log 2>/dev/null ;;
  "compose up"*) [ -e waits ] && exec sleep 30; exit $(cat code) ;;
esac
"""


@pytest.fixture
def docker(tmp_path, monkeypatch):
    """Put a `docker` first on the PATH that says what files in the checkout say."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "docker").write_text(DOCKER)
    (tmp_path / "bin" / "docker").chmod(0o755)
    (tmp_path / "docker-compose.yml").touch()
    (tmp_path / "code").write_text("1")
    ports = dict(zip(compose.PORTS, map(str, free_ports("127.0.0.1", 5)), strict=True))
    lines = "".join(
        f"{name}={value}\n" for name, value in {"COMPOSE_PROFILES": "sim", **ports}.items()
    )
    (tmp_path / ".env").write_text(lines)
    monkeypatch.delenv("COMPOSE_PROFILES", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return tmp_path


def part(service: str, state: str, code: int, health: str) -> str:
    """Return a line of `docker compose ps`."""
    told = {"Service": service, "State": state, "ExitCode": code, "Health": health}
    return json.dumps({**told, "Status": f"{state} ({code})"}) + "\n"


def test_what_ended_is_named_before_what_that_made_sick(docker):
    """And its log says what to do, where it says something known."""
    (docker / "ps.json").write_text(
        part("gpu-weights", "exited", 0, "")
        + part("router", "running", 0, "unhealthy")
        + part("gpu-1", "restarting", 1, "")
    )
    (docker / "log").write_text("torch.OutOfMemoryError: CUDA out of memory.\n")

    with pytest.raises(TargetError, match=r"^gpu-1 is not well: restarting \(1\)$") as error:
        compose.up(docker)

    assert "free GPU memory" in error.value.hint


def test_what_ends_while_compose_waits_for_it_ends_the_waiting(docker, monkeypatch):
    """A pod that comes back again and again would be waited for for long."""
    monkeypatch.setattr(compose, "LOOK_SECONDS", 0.05)
    (docker / "waits").touch()
    (docker / "ps.json").write_text(part("cpu-1", "restarting", 1, ""))

    with pytest.raises(TargetError, match="cpu-1 is not well"):
        compose.up(docker)


def test_where_the_log_says_nothing_known_it_is_named(docker):
    """A part that is up and does not answer is told of, too."""
    (docker / "ps.json").write_text(part("router", "running", 0, "unhealthy"))

    with pytest.raises(TargetError, match="router is not well") as error:
        compose.up(docker)

    assert error.value.hint == "docker compose logs router"


def test_when_all_is_well_one_is_told_where_to_look(docker):
    """On the ports that were asked for."""
    (docker / "code").write_text("0")
    port = read_env(docker / ".env")["GRAFANA_PORT"]

    assert compose.up(docker)["grafana"] == f"http://127.0.0.1:{port}"


def test_what_will_fail_is_not_tried(docker):
    """The look around comes first."""
    (docker / ".env").unlink()

    with pytest.raises(InputError, match="there is no"):
        compose.up(docker)
