"""What is said before `docker compose up` fails."""

from __future__ import annotations

import re
import socket
from dataclasses import replace

import pytest
from stack.composed import ROOT, read

from kvbench.stack import compose
from kvbench.stack.compose import Surroundings, look_around, read_env, trouble

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
