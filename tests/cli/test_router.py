"""The verb, as its own process."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request

import pytest
import typer
from typer.testing import CliRunner

from kvbench import __version__
from kvbench.cli.router import router
from kvbench.errors import InputError

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
    """One line on standard output, and nothing else; the ordinary is INFO in its log."""
    with started("--pod", "http://127.0.0.1:9", "--seed", "7") as (process, url):
        with urllib.request.urlopen(f"{url}/pods") as answer:
            listing = json.load(answer)
        with pytest.raises(urllib.error.HTTPError, match="400"):
            urllib.request.urlopen(f"{url}/decisions?limit=x")
        process.send_signal(signal.SIGTERM)

        assert [pod["name"] for pod in listing["pods"]] == ["127.0.0.1:9"]
        assert process.wait(10) == 0
        assert process.stdout.read() == ""
        log = [line.split(" ", 2)[2].strip() for line in process.stderr]
        log = [re.sub(r"via kvbench-[0-9a-f]{8}", "via US", line) for line in log]
        assert log[:2] == [
            "INFO 127.0.0.1:9 joined",
            f"INFO kvbench {__version__} routes by prefix_cost at {url}, via US, seed 7",
        ]
        assert log[-2:] == [
            "INFO told to stop: 0 under way may take 30 s more",
            "INFO ended: 0 passed on, 1 refused (400: 1)",
        ]
        assert set(log[2:-2]) <= {"WARNING 127.0.0.1:9 is down: connection refused"}


def test_routers_without_a_seed_do_not_break_ties_alike():
    """Several in front of the same idle pods would otherwise all take the same one."""
    seeds = set()
    for _ in range(2):
        with started("--pod", "http://127.0.0.1:9") as (process, _):
            process.send_signal(signal.SIGTERM)
            seeds |= set(re.findall(r"seed (\d+)$", process.stderr.read(), re.MULTILINE))
    assert len(seeds) == 2


def test_it_ends_with_its_parent():
    """Standard input at its end is the parent's end."""
    with started("--pod", "http://127.0.0.1:9", "--exit-with-parent") as (process, _):
        process.stdin.close()

        assert process.wait(10) == 0


def test_pods_come_by_the_admin_port_and_clients_need_a_key(tmp_path):
    """The admin's address is in the log, for its port may be any that is free."""
    keys = tmp_path / "keys.yaml"
    keys.write_text("keys:\n  - {name: ann, key: key-of-ann}\n")
    flags = ("--admin-port", "0", "--api-keys-file", str(keys), "--max-in-flight", "8")
    with started(*flags, "--queue", "4") as (process, url):
        admin = next(
            line.rpartition(" ")[2].strip() for line in process.stderr if "admin API at" in line
        )
        body = json.dumps({"url": "http://127.0.0.1:9"}).encode()
        with urllib.request.urlopen(f"{admin}/pods", body) as answer:
            assert answer.status == 201
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"{url}/pods")
        asked = urllib.request.Request(f"{url}/pods", headers={"x-api-key": "key-of-ann"})
        with urllib.request.urlopen(asked) as answer:
            assert [pod["name"] for pod in json.load(answer)["pods"]] == ["127.0.0.1:9"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


def test_flags_that_make_no_sense_are_refused(tmp_path):
    """Before anything listens."""
    app = typer.Typer()
    app.command()(router)
    bad = tmp_path / "pods.yaml"
    bad.write_text("pods: [x]")
    for flags, words in (
        ((), "--pod: expected at least one pod"),
        (("--pod", "http://a:1", "--queue", "3"), "--queue: expected --max-in-flight beside it"),
        (("--pods-file", str(bad)), f"{bad}:1: pods.0: expected a URL"),
        (("--pod", "dns://a"), "--pod: expected dns://NAME:PORT"),
        (("--pod", "http://a:1", "--api-keys-file", str(bad)), "expected keys: and a list"),
    ):
        error = CliRunner().invoke(app, flags).exception
        assert isinstance(error, InputError)
        assert words in str(error)
