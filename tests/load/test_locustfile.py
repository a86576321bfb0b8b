"""Locust itself, started as people and as `kvbench run` start it, against a scripted server."""

import collections
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import fakes_target
import pytest

from kvbench.records.manifest import Manifest
from kvbench.records.reader import read_rows
from kvbench.records.run import RunFolder
from kvbench.stack.loadgen import locust_command

pytestmark = [pytest.mark.stack, pytest.mark.timeout(120)]

ROOT = Path(__file__).parents[2]
WORKLOAD = """
name: small
prefixes: [{{name: tenant, count: 2, tokens: 32}}]
sessions: {{count: {sessions}, turns: 2, user_tokens: 8, answer_tokens: 4, think: 0.01}}
arrival: {{constant: {{rate: 50}}}}
"""


@pytest.fixture
def target():
    """Return the URL of a server in a process of its own that answers in 40 ms."""
    with subprocess.Popen(
        [sys.executable, fakes_target.__file__, "0.01"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        yield server.stdout.readline().split()[1]
        server.communicate()


def workload(tmp_path, sessions=4):
    """Return the path of a workload of so many sessions of two turns, 50 of them a second."""
    path = tmp_path / "small.yaml"
    path.write_text(WORKLOAD.format(sessions=sessions))
    return path


def start(command, folder, **env):
    """Start a command in a folder; its output goes into a file there."""
    with (folder / "locust.log").open("wb") as log:
        return subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **env},
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def finish(process, folder):
    """Return the exit code; on the way out, close what was opened."""
    try:
        code = process.wait(40)
    finally:
        process.kill()
        process.stdin.close()
    return code, (folder / "locust.log").read_text()


def wait_for_rows(process, pattern, folder):
    """Wait until a row file has something in it."""
    while not any(path.stat().st_size for path in folder.glob(pattern)):
        try:
            process.wait(0.02)
        except subprocess.TimeoutExpired:
            continue
        raise AssertionError((folder / "locust.log").read_text())


def test_two_worker_processes_send_the_plan_once(target, tmp_path):
    """As `kvbench run` starts them: into its folder, with its manifest left to it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    folder.write_manifest(Manifest(name="theirs"))
    command = locust_command(
        host=target,
        run_dir=folder.path,
        workload=workload(tmp_path),
        processes=2,
        master_port=port,
    )
    code, log = finish(start(command, tmp_path), tmp_path)
    rows, damage = read_rows(folder)
    assert code == 0, log
    assert [row.index for row in rows] == list(range(8))
    assert damage.sentences() == []
    assert collections.Counter(row.worker for row in rows) == {0: 4, 1: 4}
    assert {row.error for row in rows} == {None}
    assert [said.worker for said in folder.read_testimonies()] == [0, 1]
    manifest = folder.read_manifest()
    assert (manifest.name, manifest.state) == ("theirs", "running")
    assert manifest.started_at is not None


def test_ctrl_c_keeps_all_rows_and_marks_the_rest_not_sent(target, tmp_path):
    """Started by hand: the run folder and its manifest are Locust's own business."""
    command = [
        sys.executable, "-m", "locust", "-f", str(ROOT / "workloads" / "locustfile.py"),
        "--headless", "--only-summary", "--host", target,
        "--workload", str(workload(tmp_path, sessions=1000)), "--run-name", "By hand",
    ]  # fmt: skip
    process = start(command, tmp_path)
    wait_for_rows(process, "runs/*-by-hand/rows-0.jsonl", tmp_path)
    process.send_signal(signal.SIGINT)
    code, log = finish(process, tmp_path)
    (path,) = (tmp_path / "runs").iterdir()
    rows, damage = read_rows(RunFolder(path))
    found = collections.Counter(row.error for row in rows)
    assert code == 0, log
    assert [row.index for row in rows] == list(range(2000))
    assert damage.sentences() == []
    assert found[None] >= 1
    assert found["not_sent"] > 1000
    assert set(found) <= {None, "cut", "not_sent"}
    manifest = RunFolder.open(path).read_manifest()
    assert (manifest.name, manifest.state) == ("By hand", "interrupted")
    assert manifest.counts.rows == 2000
    assert manifest.counts.failed == {
        kind: count for kind, count in found.items() if kind is not None
    }


def test_a_generator_whose_parent_is_gone_ends(target, tmp_path):
    """At end-of-file on standard input, with everything written."""
    command = locust_command(
        host=target, run_dir=tmp_path / "run", workload=workload(tmp_path, sessions=1000)
    )
    process = start(command, tmp_path, KVBENCH_EXIT_WITH_PARENT="1")
    wait_for_rows(process, "run/rows-0.jsonl", tmp_path)
    process.stdin.close()
    code, log = finish(process, tmp_path)
    rows, _ = read_rows(RunFolder(tmp_path / "run"))
    assert code == 0, log
    assert len(rows) == 2000


def test_a_fault_in_a_listener_ends_the_process_with_a_code_that_is_not_0(target, tmp_path):
    """Locust itself would log it and go on: here the whole conductor is broken."""
    broken = tmp_path / "broken.py"
    broken.write_text(
        "import kvbench.load.conductor\n"
        "def fail(self): raise ZeroDivisionError('a bug')\n"
        "kvbench.load.conductor.Conductor.start = fail\n"
        "from kvbench.load.locustfile import Conversations\n"
    )
    command = locust_command(host=target, run_dir=tmp_path / "run", workload=workload(tmp_path))
    command[command.index("-f") + 1] = str(broken)
    code, log = finish(start(command, tmp_path), tmp_path)
    assert code == 1, log
    assert "ZeroDivisionError: a bug" in log


def test_a_wrong_input_has_its_own_exit_code(tmp_path):
    """And its sentence."""
    command = locust_command(
        host="http://127.0.0.1:9", run_dir=tmp_path / "run", workload=tmp_path / "nix.yaml"
    )
    code, log = finish(start(command, tmp_path), tmp_path)
    assert code == 2
    assert "nix.yaml: cannot be read" in log
