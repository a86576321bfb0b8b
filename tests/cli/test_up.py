"""`kvbench up`, where it cannot start what was asked for."""

from __future__ import annotations

import subprocess
import sys


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
