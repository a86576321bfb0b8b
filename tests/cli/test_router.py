"""The verb, as its own process."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import urllib.request

COMMAND = "import typer; from kvbench.cli.router import router; typer.run(router)"


@contextlib.contextmanager
def started(*arguments: str):
    """Start a router; give the process and the URL that it printed."""
    command = [sys.executable, "-c", COMMAND, *arguments]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, text=True, **pipes) as process:
        try:
            ready, _, url = process.stdout.readline().strip().partition(" ")
            assert ready == "ready", process.stderr.read()
            yield process, url
        finally:
            process.kill()


def test_it_says_where_it_listens_serves_and_ends_with_code_zero_on_sigterm():
    """One line on standard output, and nothing else."""
    with started("--pod", "http://127.0.0.1:9") as (process, url):
        with urllib.request.urlopen(f"{url}/pods") as answer:
            listing = json.load(answer)
        process.send_signal(signal.SIGTERM)

        assert [pod["name"] for pod in listing["pods"]] == ["127.0.0.1:9"]
        assert process.wait(10) == 0
        assert process.stdout.read() == ""


def test_it_ends_with_its_parent():
    """Standard input at its end is the parent's end."""
    with started("--pod", "http://127.0.0.1:9", "--exit-with-parent") as (process, _):
        process.stdin.close()

        assert process.wait(10) == 0
