"""Locust itself, started as people and as `kvbench run` start it, against a scripted server."""

import collections
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import fakes_target
import psutil
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


def free_port():
    """Return a port that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def by_hand(*flags):
    """Return the command line of somebody who starts Locust without a web UI."""
    file = str(ROOT / "workloads" / "locustfile.py")
    return [sys.executable, "-m", "locust", "-f", file, "--headless", "--only-summary", *flags]


def test_locusts_own_reports_are_written_beside_the_rows(target, tmp_path):
    """`--csv`, `--html` and `--processes` do what their users know."""
    port = str(free_port())
    command = by_hand(
        "--host", target, "--workload", str(workload(tmp_path)), "--run-dir", "run",
        "--csv", "table", "--html", "page.html", "--processes", "2",
        "--master-bind-host", "127.0.0.1", "--master-bind-port", port, "--master-port", port,
    )  # fmt: skip
    code, log = finish(start(command, tmp_path), tmp_path)
    assert code == 0, log
    table = (tmp_path / "table_stats.csv").read_text()
    assert {line.split(",")[0] for line in table.splitlines()} >= {"E2E", "TTFT"}
    assert "TTFT" in (tmp_path / "page.html").read_text()
    folder = RunFolder.open(tmp_path / "run")
    rows, damage = read_rows(folder)
    assert ([row.index for row in rows], damage.sentences()) == (list(range(8)), [])
    assert {row.worker for row in rows} == {0, 1}
    assert folder.read_manifest().validity == []
    assert not (folder.path / ".master").exists()


def test_rows_of_workers_on_other_machines_are_merged_into_the_masters_run(target, tmp_path):
    """Each in a directory of its own, as on a machine of its own; the plan's file is copied."""
    port = str(free_port())
    given = ["--workload", "small.yaml", "--run-dir", "run", "--master-port", port]
    places = [tmp_path / name for name in ("master", "left", "right")]
    for place in places:
        place.mkdir()
        workload(place, sessions=20)
    master = by_hand("--host", target, *given[:4], "--master", "--expect-workers", "2")
    master += ["--master-bind-host", "127.0.0.1", "--master-bind-port", port]
    running = [start(master, places[0])]
    running += [start(by_hand(*given, "--worker"), place) for place in places[1:]]
    ended = [finish(process, place) for process, place in zip(running, places, strict=True)]
    assert [code for code, _ in ended] == [0, 0, 0], ended
    folder = RunFolder.open(places[0] / "run")
    rows, damage = read_rows(folder)
    assert ([row.index for row in rows], damage.sentences()) == (list(range(40)), [])
    assert [said.turns for said in folder.read_testimonies()] == [20, 20]
    manifest = folder.read_manifest()
    assert (manifest.state, manifest.counts.rows, manifest.validity) == ("finished", 40, [])
    theirs = [RunFolder(place / "run") for place in places[1:]]
    mine = {path.name: path.read_bytes() for path in folder.rows_paths()}
    assert mine == {p.name: p.read_bytes() for other in theirs for p in other.rows_paths()}


def test_a_worker_with_another_plan_is_refused(target, tmp_path):
    """The union of the parts would not be the plan."""
    port = str(free_port())
    given = ["--workload", "small.yaml", "--run-dir", "run", "--master-port", port]
    places = [tmp_path / "master", tmp_path / "worker"]
    for sessions, place in enumerate(places, 4):
        place.mkdir()
        workload(place, sessions)
    master = by_hand("--host", target, *given[:4], "--master", "--expect-workers", "1")
    master += ["--master-bind-host", "127.0.0.1", "--master-bind-port", port]
    running = [start(master, places[0]), start(by_hand(*given, "--worker"), places[1])]
    (code, log), _ = [finish(p, place) for p, place in zip(running, places, strict=True)]
    assert code == 2
    assert "small.yaml: is not the master's file of that name" in log


def test_a_worker_that_is_killed_ends_the_run_and_its_turns_are_lost(target, tmp_path):
    """It is reported, what it had filed stays, and what it owes has rows of a kind of its own."""
    port = free_port()
    command = locust_command(
        host=target, run_dir=tmp_path / "run", workload=workload(tmp_path, sessions=1000),
        processes=2, master_port=port,
    )  # fmt: skip
    process = start(command, tmp_path)
    wait_for_rows(process, "run/rows-1.jsonl", tmp_path)
    folder = RunFolder(tmp_path / "run")
    victim = max(child.pid for child in psutil.Process(process.pid).children())
    os.kill(victim, signal.SIGKILL)
    code, log = finish(process, tmp_path)
    rows, damage = read_rows(folder)
    lost = [row for row in rows if row.error == "lost"]
    assert code == 4, log
    assert "was lost" in log
    assert [row.index for row in rows] == list(range(2000))
    assert damage.broken <= 1
    assert len({row.worker for row in lost}) == 1
    assert len(lost) > 500
    assert {row.error for row in rows if row.worker != lost[0].worker} <= {None, "cut", "not_sent"}
    manifest = folder.read_manifest()
    assert manifest.state == "failed"
    assert any("were lost with their load worker" in reason for reason in manifest.validity)


def test_metrics_are_served_where_they_were_asked_for(target, tmp_path):
    """By the master, without a web UI, until it ends."""
    port = free_port()
    command = by_hand(
        "--host", target, "--workload", str(workload(tmp_path, sessions=1000)), "--run-dir", "run",
        "--metrics-port", str(port),
    )  # fmt: skip
    process = start(command, tmp_path)
    wait_for_rows(process, "run/rows-0.jsonl", tmp_path)
    told = ""
    while 'kvbench_load_turns_total{outcome="ok"}' not in told:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            told = answer.read().decode()
    process.send_signal(signal.SIGINT)
    code, log = finish(process, tmp_path)
    assert code == 0, log
    assert "kvbench_load_running 1.0" in told
    assert 'kvbench_load_run_info{run="run",target="' in told


def test_workers_whose_master_is_killed_end_with_all_their_rows(target, tmp_path):
    """When the parent that watches the master lets go of them, too."""
    command = locust_command(
        host=target, run_dir=tmp_path / "run", workload=workload(tmp_path, sessions=1000),
        processes=2, master_port=free_port(),
    )  # fmt: skip
    process = start(command, tmp_path, KVBENCH_EXIT_WITH_PARENT="1")
    wait_for_rows(process, "run/rows-1.jsonl", tmp_path)
    workers = psutil.Process(process.pid).children()
    process.kill()
    process.wait(10)
    process.stdin.close()
    assert len(workers) == 2
    assert psutil.wait_procs(workers, timeout=40)[1] == []
    rows, damage = read_rows(RunFolder(tmp_path / "run"))
    assert ([row.index for row in rows], damage.sentences()) == (list(range(2000)), [])
    assert {row.error for row in rows} <= {None, "cut", "not_sent"}
