"""The stack as `docker compose up` starts it."""

from __future__ import annotations

import json
import subprocess
import threading
import urllib.request

import pytest
from compose.running import ask, ours, wait_until

pytestmark = [pytest.mark.compose, pytest.mark.timeout(400)]


NEWEST = """if True:
    import json, pathlib
    run = max(pathlib.Path("runs").glob("2*"))
    told = run / "manifest.json"  # it comes a moment after the folder
    manifest = json.loads(told.read_text()) if told.is_file() else {"state": "begun"}
    rows = [json.loads(line) for file in run.glob("rows-*.jsonl") for line in file.open()]
    done = manifest["state"] == "finished"
    print(json.dumps([run.name, manifest["counts"], rows] if done else None))
"""
"""Reads the newest run in the volume of runs."""


def run_load(stack) -> None:
    """Have Locust send the demo's workload, from its web UI's API, to the end."""
    locust = stack.url("LOCUST_PORT")
    form = {"user_count": "1", "spawn_rate": "1", "host": "http://router:8000"}
    assert ask(f"{locust}/swarm", {**form, "workload": "workloads/demo.yaml"})["success"]

    def over():
        """The run has ended."""
        return ask(f"{locust}/stats/requests")["state"] == "stopped"

    wait_until(over, 120)


def test_every_part_is_well(stack):
    """And each of the two workers."""
    health = {name: c["State"]["Health"]["Status"] for name, c in stack.containers().items()}

    assert health == dict.fromkeys(
        [
            *("sim-1-1", "sim-2-1", "router-1", "exporter-1", "load-1"),
            *("load-worker-1", "load-worker-2", "prometheus-1", "alertmanager-1", "grafana-1"),
        ],
        "healthy",
    )


def test_docker_gives_each_part_no_more_than_the_file_says(stack):
    """What the engine has made of it, not what the file asks for."""
    for name, container in stack.containers().items():
        host = container["HostConfig"]

        assert host["ReadonlyRootfs"], name
        assert host["CapDrop"] == ["ALL"], name
        assert not host["Privileged"], name
        assert host["Memory"] > 0, name
        assert host["NanoCpus"] > 0, name
        assert container["Config"]["User"].split(":")[0] not in {"", "0", "root"}, name
        published = [at for ports in (host["PortBindings"] or {}).values() for at in ports]
        assert all(at["HostIp"] == "127.0.0.1" for at in published), name


def test_a_run_from_locusts_web_ui_is_routed_to_where_its_prefixes_are(stack):
    """Rows, pods and router say the same; both workers had a part in it."""
    hits = "sum(vllm:prefix_cache_hits_total) / sum(vllm:prefix_cache_queries_total)"
    run_load(stack)

    def closed():
        """The newest run's manifest is closed; its name, its counts and its rows."""
        return json.loads(stack.compose("exec", "-T", "load", "python3", "-c", NEWEST))

    run, counts, rows = wait_until(closed, 30)

    assert counts == {"planned": 169, "rows": 169, "ok": 169, "failed": {}}
    assert {row["pod"] for row in rows} == {"pod-1:8000", "pod-2:8000"}
    cached = sum(row["cached_tokens"] for row in rows)
    assert cached / sum(row["prompt_tokens"] for row in rows) > 0.6
    assert wait_until(lambda: stack.query(hits).get("", 0) > 0.6, 30)
    assert run in stack.compose("exec", "-T", "load", "kvbench", "report", f"runs/{run}")


def test_prometheus_sees_every_target_and_every_rule_is_well(stack):
    """Pods under the names that router and exporter use."""
    prometheus = stack.url("PROMETHEUS_PORT")

    def all_up():
        """Every target has been scraped."""
        found = ask(f"{prometheus}/api/v1/targets")["data"]["activeTargets"]
        up = {t["labels"]["instance"] for t in found if t["health"] == "up"}
        return up if len(up) == len(found) == 7 else None

    assert wait_until(all_up, 60) == {
        *("pod-1:8000", "pod-2:8000", "router:8000", "exporter:9410"),
        *("load:8089", "127.0.0.1:9090", "alertmanager:9093"),
    }
    groups = ask(f"{prometheus}/api/v1/rules")["data"]["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) > 40
    assert {rule["health"] for rule in rules} <= {"ok", "unknown"}
    managers = ask(f"{prometheus}/api/v1/alertmanagers")["data"]["activeAlertmanagers"]
    assert [manager["url"] for manager in managers] == ["http://alertmanager:9093/api/v2/alerts"]


def test_every_panels_query_answers_with_numbers_once_there_was_a_run(stack):
    """Panels of the load's board among them: Locust's master tells of the run."""
    run_load(stack)

    done = stack.kvbench("dashboards", "--prometheus", stack.url("PROMETHEUS_PORT"), "--last", "3m")

    assert (done.returncode, done.stderr) == (0, ""), done.stdout


def test_a_killed_pod_is_told_of_and_so_is_its_return(stack):
    """By the rules as they are: two minutes until somebody is woken."""

    def woken():
        """Alertmanager has the alert."""
        alerts = ask(f"{stack.url('ALERTMANAGER_PORT')}/api/v2/alerts?active=true")
        return [
            a["labels"]["instance"] for a in alerts if a["labels"]["alertname"] == "KVBenchPodDown"
        ]

    def known():
        """The pod's recorded series is there, which says that it has served."""
        return "pod-2:8000" in stack.query("pod:requests:sum")

    wait_until(known, 60)
    stack.compose("kill", "sim-2")
    try:
        assert wait_until(woken, 200) == ["pod-2:8000"]
        with urllib.request.urlopen(f"{stack.url('ROUTER_PORT')}/pods") as answer:
            healthy = {pod["name"]: pod["healthy"] for pod in json.load(answer)["pods"]}
        assert healthy == {"pod-1:8000": True, "pod-2:8000": False}
    finally:
        stack.compose("up", "--detach", "--wait", "sim-2")
    wait_until(lambda: not woken(), 120)


def test_a_stream_under_way_is_finished_when_the_router_is_stopped(stack):
    """Nobody's answer is cut off by an update."""
    model = ask(f"{stack.url('ROUTER_PORT')}/v1/models")["data"][0]["id"]
    body = {"model": model, "prompt": "Say something long.", "max_tokens": 200, "stream": True}
    request = urllib.request.Request(
        f"{stack.url('ROUTER_PORT')}/v1/completions",
        json.dumps({**body, "ignore_eos": True}).encode(),
        {"content-type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            first = answer.readline()
            stopping = threading.Thread(target=stack.compose, args=("stop", "router"))
            stopping.start()
            rest = answer.read()
            stopping.join()
    finally:
        stack.up()

    assert first.startswith(b"data: ")
    assert rest.rstrip().endswith(b"data: [DONE]")
    assert rest.count(b"data: ") == 200


def test_up_twice_changes_nothing_and_down_and_up_keep_what_was_measured(stack):
    """Containers are the same; runs and what Prometheus has seen are in volumes."""
    before = {name: one["Id"] for name, one in stack.containers().items()}
    stack.up()
    assert {name: one["Id"] for name, one in stack.containers().items()} == before
    stack.compose("exec", "-T", "load", "mkdir", "-p", "runs/kept")
    oldest = wait_until(lambda: stack.query("min_over_time(timestamp(up)[1h:5s])"), 30)

    stack.compose("down")
    assert [ours("container"), ours("network")] == [[], []]
    stack.up()

    assert "kept" in stack.compose("exec", "-T", "load", "ls", "runs").split()
    kept = wait_until(lambda: stack.query("min_over_time(timestamp(up)[1h:5s])"), 30)
    assert min(kept.values()) == min(oldest.values())
    stack.compose("exec", "-T", "load", "rmdir", "runs/kept")


def test_the_image_has_no_compiler_no_pip_and_nothing_of_the_builders_secrets(stack):
    """The certificates of whoever built it are not theirs who run it."""
    image = "kvbench:0.0.0-test"
    script = """if True:
        import shutil, os, pathlib
        print("pip" in os.listdir("/opt/kvbench/bin"))
        print([shutil.which(name) for name in ("cc", "gcc", "g++", "make")])
        print(os.getuid(), os.path.exists("/run/secrets"), list(pathlib.Path("/opt").iterdir()))
        import kvbench.router.forward
        print(pathlib.Path(kvbench.router.forward.__file__).suffix)
    """
    python = ["--entrypoint", "python3", image, "-c"]
    command = ["docker", "run", "--rm", "--read-only", *python]
    said = subprocess.run([*command, script], capture_output=True, text=True, check=True).stdout
    history = subprocess.run(
        ["docker", "history", "--no-trunc", image], capture_output=True, text=True, check=True
    ).stdout

    assert said.splitlines() == [
        "False",
        "[None, None, None, None]",
        "10001 False [PosixPath('/opt/kvbench')]",
        ".so",  # for the stack was told to compile it
    ]
    assert stack.env["CA_BUNDLE"] not in history
