"""The whole line as a user runs it: processes, sockets, rows, table, report, exit codes."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from kvbench.records.decisions import read_decisions
from kvbench.records.evidence import read_evidence
from kvbench.records.reader import read_frame
from kvbench.records.run import RunFolder
from kvbench.stack.local import LocalStack
from kvbench.stack.process import Child, kvbench_command
from kvbench.stack.topology import PodSpec, RouterSpec, Topology

pytestmark = pytest.mark.timeout(120)

WORKLOAD = """
name: small
api: chat
seed: 3
prefixes:
  - {name: system, count: 4, tokens: 300}
sessions: {count: 10, turns: 3, user_tokens: 40, answer_tokens: 6, think: 0.05}
arrival: {poisson: {rate: 10}}
"""
LONG = WORKLOAD.replace("count: 10", "count: 200")
TRACE = "".join(
    f'{{"timestamp": {40 * i}, "input_length": {1100 + i}, "output_length": 3, '
    f'"hash_ids": [0, {1 + i % 3}, {10 + i}]}}\n'
    for i in range(12)
)


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    """Two simulated pods behind a prefix-aware router."""
    topology = Topology(pods=(PodSpec(time_scale=0.2),) * 2, router=RouterSpec("prefix_cost"))
    with LocalStack(topology, tmp_path_factory.mktemp("logs")) as running:
        yield running


def kvbench(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    """Start a command line."""
    command = [sys.executable, "-m", "kvbench.cli.main", *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=cwd, stdout=pipe, stderr=pipe, text=True)


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Wait for a command, and return exit code, standard output and standard error."""
    out, err = process.communicate(timeout=100)
    return process.returncode, out, err


def only_run(folder: Path) -> RunFolder:
    """Return the one run below a folder."""
    (path,) = (folder / "runs").iterdir()
    return RunFolder.open(path)


def wait_for_rows(process: subprocess.Popen[str], folder: Path, least: int) -> None:
    """Wait until a run has written so many rows."""
    while process.poll() is None:
        rows = sum(path.read_bytes().count(b"\n") for path in folder.glob("runs/*/rows-*.jsonl"))
        if rows >= least:
            return
    pytest.fail(f"ended before {least} rows: {finish(process)}")


def children(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """Return all that a command has started."""
    return psutil.Process(process.pid).children(recursive=True)


def test_a_run_leaves_one_row_per_turn_whose_hits_the_pods_counted_too(stack, tmp_path):
    """Rows, server counters, ceiling and table agree."""
    (tmp_path / "small.yaml").write_text(WORKLOAD)

    code, out, err = finish(kvbench("run", "small.yaml", "--target", stack.url, cwd=tmp_path))

    assert (code, err) == (0, "")
    folder = only_run(tmp_path)
    frame, damage = read_frame(folder)
    manifest = folder.read_manifest()
    gained = sum(pod.after.hits - pod.before.hits for pod in manifest.pods.values())
    assert damage.sentences() == []
    assert list(frame["index"]) == list(range(30))
    assert frame["cached_tokens"].sum() == gained > 0
    assert (frame["prompt_tokens"] == frame["planned_prompt_tokens"]).all()
    assert frame["ceiling_tokens"].sum() == manifest.ceiling.tokens
    assert (frame["lateness_s"] >= 0).all()
    assert manifest.state == "finished"
    assert manifest.validity == []
    assert (folder.path / "report.html").read_text().startswith("<!doctype html>")
    assert f"report   {folder.path.relative_to(tmp_path)}/report.html" in out


@pytest.mark.stack
@pytest.mark.parametrize(
    ("lacks", "flag"),
    [
        ("--no-enable-prompt-tokens-details", "--enable-prompt-tokens-details"),
        ("--no-enable-prefix-caching", "--enable-prefix-caching"),
        ("--max-model-len=400", "--max-model-len"),
    ],
)
def test_a_pod_that_lacks_something_is_refused_before_a_turn_is_sent(lacks, flag, tmp_path):
    """With the flag that turns it on, and no run folder; `--no-preflight` measures all the same."""
    (tmp_path / "small.yaml").write_text(WORKLOAD)
    with Child("pod", kvbench_command("pod", lacks), tmp_path / "pod.log") as pod:
        asked = ("run", "small.yaml", "--target", pod.wait_ready(60))
        code, _, err = finish(kvbench(*asked, cwd=tmp_path))
        assert code == (2 if flag == "--max-model-len" else 3)
        assert f"start vLLM with {flag}" in err
        assert not (tmp_path / "runs").exists()
        finish(kvbench(*asked, "--no-preflight", cwd=tmp_path))
    assert len(read_frame(only_run(tmp_path))[0]) == 30


@pytest.mark.stack
def test_two_runs_of_the_same_plan_do_not_hit_what_the_other_left(stack, tmp_path):
    """The cache salt keeps them apart: the second is as cold as the first."""
    (tmp_path / "small.yaml").write_text(WORKLOAD)
    hits = []
    for place in ("first", "second"):
        run = kvbench("run", "../small.yaml", "--target", stack.url, cwd=make(tmp_path / place))
        assert finish(run)[0] == 0
        frame, _ = read_frame(only_run(tmp_path / place))
        hits.append((frame["cached_tokens"] <= frame["ceiling_tokens"]).all())
    assert hits == [True, True]


def make(folder: Path) -> Path:
    """Return a new folder."""
    folder.mkdir()
    return folder


@pytest.mark.stack
def test_a_replayed_trace_reports_the_ceiling_of_its_ids(stack, tmp_path):
    """Same ids, same tokens: what the ids allow in blocks of 512 is what the manifest says."""
    (tmp_path / "trace.jsonl").write_text(TRACE)
    command = ("run", "--trace", "trace.jsonl", "--speed", "2", "--target", stack.url)
    code, _, err = finish(kvbench(*command, cwd=tmp_path))
    assert (code, err) == (0, "")
    folder = only_run(tmp_path)
    frame, _ = read_frame(folder)
    manifest = folder.read_manifest()
    # The first request of three hits nothing, two more hit the shared first block, nine hit two.
    assert manifest.ids_ceiling.tokens == 512 * (0 + 2 * 1 + 9 * 2)
    assert manifest.ids_ceiling.tokens == manifest.ceiling.tokens
    assert list(frame.sort_values("index")["prompt_tokens"]) == [1100 + i for i in range(12)]
    assert 0 < frame["cached_tokens"].sum() <= manifest.ceiling.tokens


@pytest.mark.stack
def test_a_late_generator_is_said_to_be_late_and_exits_with_4(stack, tmp_path):
    """A generator that the machine did not let work has measured the machine."""
    (tmp_path / "small.yaml").write_text(WORKLOAD)
    process = kvbench("run", "small.yaml", "--target", stack.url, cwd=tmp_path)
    wait_for_rows(process, tmp_path, 3)
    (locust,) = children(process)
    locust.suspend()
    with pytest.raises(psutil.TimeoutExpired):
        locust.wait(0.6)
    locust.resume()
    code, out, err = finish(process)
    assert code == 4
    assert "the load generator was late: p99 of" in err
    assert re.search(r"late p99|late", out)
    assert len(read_frame(only_run(tmp_path))[0]) == 30


@pytest.mark.stack
def test_a_generator_that_is_killed_loses_only_what_was_in_flight(stack, tmp_path):
    """Its rows stay, the run is closed, and it is not taken for a measurement."""
    (tmp_path / "long.yaml").write_text(LONG)
    process = kvbench("run", "long.yaml", "--target", stack.url, cwd=tmp_path)
    wait_for_rows(process, tmp_path, 10)
    children(process)[0].kill()
    code, _, err = finish(process)
    assert code == 4
    assert re.search(r"the load generator ended with -9 after \d+ of 600 turns", err)
    frame, damage = read_frame(only_run(tmp_path))
    assert list(frame.sort_values("index")["index"]) == list(range(600))
    assert set(frame["error"].dropna()) == {"lost"}
    assert frame["error"].isna().sum() >= 10
    assert damage.broken <= 1
    manifest = only_run(tmp_path).read_manifest()
    assert (manifest.state, manifest.counts.rows) == ("failed", 600)
    assert any("were lost with their load worker" in reason for reason in manifest.validity)


@pytest.mark.stack
def test_ctrl_c_keeps_the_rows_marks_the_rest_and_leaves_nothing_running(stack, tmp_path):
    """Every planned turn has its row: answered, or not sent."""
    (tmp_path / "long.yaml").write_text(LONG)
    process = kvbench("run", "long.yaml", "--target", stack.url, cwd=tmp_path)
    wait_for_rows(process, tmp_path, 10)
    started = children(process)
    process.send_signal(signal.SIGINT)
    code, out, err = finish(process)
    assert (code, "Traceback" in err) == (130, False)
    assert f"interrupted; every row so far is kept: runs/{only_run(tmp_path).id}" in out
    assert psutil.wait_procs(started, timeout=10)[1] == []
    folder = only_run(tmp_path)
    frame, _ = read_frame(folder)
    assert len(frame) == 600
    assert (frame["error"] == "not_sent").sum() > 0
    assert folder.read_manifest().state == "interrupted"


@pytest.mark.stack
def test_a_pod_that_dies_costs_the_turns_it_had_and_exits_with_3(tmp_path):
    """What was in its streams is cut; what comes later goes to the pod that lives."""
    topology = Topology(pods=(PodSpec(),) * 2, router=RouterSpec("round_robin"))
    (tmp_path / "long.yaml").write_text(LONG.replace("count: 200", "count: 30"))
    with LocalStack(topology, tmp_path / "logs") as running:
        process = kvbench("run", "long.yaml", "--target", running.url, cwd=tmp_path)
        wait_for_rows(process, tmp_path, 20)
        psutil.Process(running.pods[0].pid).kill()
        code, _, err = finish(process)
    frame, _ = read_frame(only_run(tmp_path))
    failed = frame[frame["error"].notna()]
    assert code == 3
    assert len(frame) == 90
    assert set(failed["error"]) == {"cut"}
    assert f"kvbench: {len(failed)} of 90 turns failed: {len(failed)} × cut" in err
    assert frame.loc[frame["index"] > failed["index"].max() + 5, "error"].isna().all()


@pytest.mark.stack
def test_the_demo_compares_two_policies_and_leaves_nothing_running(tmp_path):
    """The same plan under both arms; the prefix-aware one hits more."""
    (tmp_path / "small.yaml").write_text(WORKLOAD.replace("count: 10", "count: 16"))
    process = kvbench("demo", "--workload", "small.yaml", cwd=tmp_path)
    wait_for_rows(process, tmp_path, 1)
    started = children(process)
    code, out, err = finish(process)
    assert (code, err) == (0, "")
    assert psutil.wait_procs(started, timeout=10)[1] == []
    first, second = sorted((tmp_path / "runs").iterdir())
    arms = [RunFolder.open(path) for path in (first, second)]
    assert [folder.read_manifest().arm for folder in arms] == ["round_robin", "prefix_cost"]
    frames = [read_frame(folder)[0].sort_values("index") for folder in arms]
    same = ["index", "session", "turn", "planned_prompt_tokens", "ceiling_tokens", "max_tokens"]
    assert frames[0][same].equals(frames[1][same])
    assert frames[0]["cached_tokens"].sum() < frames[1]["cached_tokens"].sum()
    assert frames[1]["policy"].unique() == ["prefix_cost"]
    assert out.count("rows     runs/") == 2
    assert "round_robin" in (second / "report.html").read_text()


@pytest.mark.stack
def test_a_full_disk_says_so_and_stops_the_run(stack, tmp_path):
    """Whose disk it is is nobody else's fault; what was written stays."""
    (tmp_path / "long.yaml").write_text(LONG)
    process = kvbench("run", "long.yaml", "--target", stack.url, cwd=tmp_path)
    wait_for_rows(process, tmp_path, 10)
    (locust,) = children(process)
    (rows,) = only_run(tmp_path).rows_paths()
    full = rows.stat().st_size + 100
    locust.rlimit(psutil.RLIMIT_FSIZE, (full, full))
    code, _, err = finish(process)
    assert code == 2
    assert "cannot write rows: " in err
    frame, damage = read_frame(only_run(tmp_path))
    assert len(frame) >= 10
    assert damage.broken <= 1
    assert only_run(tmp_path).read_manifest().state == "failed"


@pytest.mark.stack
def test_a_run_whose_parent_is_killed_has_all_its_rows_and_is_not_taken_for_a_measurement(
    stack, tmp_path
):
    """The load generator ends by itself, and what was never sent is said so."""
    (tmp_path / "long.yaml").write_text(LONG)
    process = kvbench("run", "long.yaml", "--target", stack.url, cwd=tmp_path)
    wait_for_rows(process, tmp_path, 10)
    started = children(process)
    process.kill()
    process.communicate()
    assert psutil.wait_procs(started, timeout=30)[1] == []
    folder = only_run(tmp_path)
    evidence = read_evidence(folder)
    assert len(evidence.frame) == 600
    assert folder.read_manifest().state == "running"
    assert evidence.reasons[0] == "the run has not ended, or was killed before it could say so"


@pytest.mark.stack
def test_a_run_on_two_processes_is_one_run(stack, tmp_path):
    """As `--processes` asks for: one folder, each turn once, both workers' testimonies."""
    (tmp_path / "small.yaml").write_text(WORKLOAD)
    asked = ("run", "small.yaml", "--target", stack.url, "--processes", "2")
    code, out, err = finish(kvbench(*asked, cwd=tmp_path))
    assert (code, err) == (0, "")
    frame, damage = read_frame(only_run(tmp_path))
    assert (list(frame["index"]), damage.sentences()) == (list(range(30)), [])
    assert "load     2 workers, at most " in out


@pytest.mark.stack
def test_the_same_plan_without_a_salt_is_refused_the_second_time(stack, tmp_path):
    """It would hit what it left itself; who wants that says so."""
    (tmp_path / "small.yaml").write_text(WORKLOAD)
    asked = ("run", "small.yaml", "--target", stack.url, "--isolation", "none")
    assert finish(kvbench(*asked, cwd=tmp_path))[0] == 0
    first = only_run(tmp_path)
    code, _, err = finish(kvbench(*asked, cwd=tmp_path))
    assert code == 2
    assert f"{first.id} sent this very plan to {stack.url}" in err
    code, _, err = finish(kvbench(*asked, "--warm", cwd=tmp_path))
    assert (code, err) == (0, "")
    assert len(list((tmp_path / "runs").iterdir())) == 2


@pytest.mark.stack
def test_a_stacks_router_knows_what_its_pods_hold_and_explains_each_turn(stack, tmp_path):
    """Nearly every prediction is right to the token; the run keeps every decision."""
    (tmp_path / "small.yaml").write_text(WORKLOAD)
    assert finish(kvbench("run", "small.yaml", "--target", stack.url, cwd=tmp_path))[0] in {0, 4}
    folder = only_run(tmp_path)
    decisions = [e for entries in read_decisions(folder.decisions_path).values() for e in entries]
    assert len(decisions) == 30
    assert sum(entry.exact for entry in decisions) >= 28  # all but those before the first event
    assert sum(entry.cause == "none" for entry in decisions) >= 27
    frame, _ = read_frame(folder)
    told = {entry.id: entry.cause for entry in decisions}
    assert frame["prediction_cause"].tolist() == [told[id_] for id_ in frame["request_id"]]

    code, out, err = finish(kvbench("explain", str(folder.path), "--turn", "20", cwd=tmp_path))
    assert (code, err) == (0, "")
    assert "prefix_cost chose it" in out
    assert all(url.removeprefix("http://")[:9] in out for url in stack.pod_urls)


@pytest.mark.stack
def test_rows_of_a_run_that_locust_began_have_their_causes_too(stack, tmp_path):
    """Its master collects what the router decides, for all of its workers."""
    (tmp_path / "small.yaml").write_text(WORKLOAD)
    file = Path(__file__).parents[2] / "workloads" / "locustfile.py"
    command = [sys.executable, "-m", "locust", "-f", str(file), "--headless", "--host", stack.url]
    flags = ["--workload", "small.yaml", "--run-dir", "runs/one", "--only-summary"]
    pipe = subprocess.PIPE
    locust = subprocess.Popen([*command, *flags], cwd=tmp_path, stdout=pipe, stderr=pipe, text=True)
    code, out, err = finish(locust)
    assert code == 0, out + err
    frame, _ = read_frame(only_run(tmp_path))
    assert len(frame) == 30
    assert frame["prediction_cause"].notna().all()
