"""`kvbench up`, where it cannot start what was asked for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest


def up(*arguments: str, cwd) -> tuple[int, list[str]]:
    """Run the verb; return its exit code and what it says on standard error."""
    command = [sys.executable, "-m", "kvbench.cli.main", "up", *arguments]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr.splitlines()


def test_real_pods_want_a_model(tmp_path):
    """There is none by default: it would be downloaded."""
    code, said = up("--engine", "vllm", cwd=tmp_path)

    assert code == 2
    assert said[0] == "kvbench: --engine vllm: expected --model, got none"


def test_a_vllm_that_is_not_installed_is_said_at_once(tmp_path):
    """With the name of what was tried, and the two ways out."""
    code, said = up(
        *("--engine", "vllm", "--model", "m", "--pods", "1", "--vllm-command", "no-such-vllm"),
        cwd=tmp_path,
    )

    assert code == 2
    assert said[0] == "kvbench: pod 1 ended with 2"
    assert said[1].strip() == "no-such-vllm cannot be started: No such file or directory"
    assert said[2].startswith("  hint: pip install 'kvbench[vllm]', or say with --vllm-command")


def test_docker_is_not_asked_to_start_what_is_not_there(tmp_path):
    """A folder that is no checkout."""
    code, said = up("--compose", cwd=tmp_path)

    assert code == 2
    assert said == [
        "kvbench: there is no docker-compose.yml here",
        "  hint: run this in a checkout of kvbench",
    ]


def pods_of(parent: int) -> list[int]:
    """Return the processes of the pods that a `kvbench up` has started."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(c) for c in children if b"\0pod\0" in Path(f"/proc/{c}/cmdline").read_bytes()]


@pytest.mark.stack
def test_a_pod_that_dies_is_said_and_the_others_go_on(tmp_path):
    """The router answers without it; when the last one is gone, so is the stack."""
    command = [sys.executable, "-m", "kvbench.cli.main", "up", "--pods", "2"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        said = list(iter(process.stdout.readline, "\n"))
        router = next(line for line in said if line.startswith("router")).split()[1]
        first, last = pods_of(process.pid)
        os.kill(first, signal.SIGKILL)
        line = next(line for line in process.stdout if "ended with" in line)
        assert line.startswith("pod 1 ended with -9; the others go on")
        with urllib.request.urlopen(f"{router}/v1/models") as answer:
            assert answer.status == 200
        os.kill(last, signal.SIGKILL)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 3
    assert errors.startswith("kvbench: pod 1 ended with -9")
