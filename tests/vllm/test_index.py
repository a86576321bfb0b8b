"""The router's index against real engines: under load, after a reset, and joined late."""

import json
import os
import random
import subprocess
import sys
import threading
import urllib.request
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
import zmq
from real_vllm import OFFSETS, free_port, wait_healthy

from kvbench.records.decisions import read_decisions
from kvbench.records.reader import read_rows
from kvbench.records.run import RunFolder
from kvbench.stack.process import Child, kvbench_command

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

# Sixty conversations do not fit into two pods of 600 blocks: blocks are evicted all the time.
WORKLOAD = """
name: exact
api: chat
seed: 5
prefixes:
  - {name: system, count: 5, tokens: 500}
sessions:
  count: 60
  turns: 3
  user_tokens: {uniform: [100, 300]}
  answer_tokens: 8
  think: 0.5
arrival:
  poisson: {rate: 6}
"""


def endpoints(url):
    """Return where a real pod publishes, and where it replays."""
    port = urlsplit(url).port
    return [f"tcp://127.0.0.1:{port + offset}" for offset in OFFSETS[1:]]


@contextmanager
def exact_router(pods, folder, *flags, heard_at=None):
    """Run a router that hears the pods' events, or those of the first at another place."""
    words = []
    for url in pods:
        events, replay = endpoints(url)
        words += ["--pod", f"{url},events={heard_at or events},replay={replay}"]
    command = kvbench_command("router", "--port", "0", "--exit-with-parent", *words, *flags)
    with Child("router", command, folder / f"router-{len(flags)}.log") as child:
        url = child.wait_ready(60)
        wait_exact(url, len(pods))
        yield url


def wait_exact(url, pods):
    """Wait until all pods are known exactly, and the model's tokens too."""
    for _ in range(600):
        text = get(url, "/metrics").decode()
        exact = [line for line in text.splitlines() if 'events_trust{level="exact"' in line]
        known = 'tokens_known{model="tiny"} 1.0' in text
        if known and sum(line.endswith(" 1.0") for line in exact) == pods:
            return
        subprocess.run(["sleep", "0.1"], check=True)
    pytest.fail(f"the pods did not become exact:\n{text}")


@contextmanager
def lossy(events, place, share, rng):
    """Pass a pod's events on, but for a share of them; yields how many were lost so far."""
    context = zmq.Context()
    heard, told = context.socket(zmq.SUB), context.socket(zmq.PUB)
    heard.connect(events)
    heard.subscribe(b"")
    told.bind(place)
    lost, over = [0], threading.Event()

    def run():
        while not over.is_set():
            if heard.poll(50):
                frames = heard.recv_multipart()
                if rng.random() < share:
                    lost[0] += 1
                else:
                    told.send_multipart(frames)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield lost
    finally:
        over.set()
        thread.join()
        context.destroy(0)


def get(url, path):
    """Return the body of a GET."""
    with urllib.request.urlopen(url + path, timeout=30) as answer:
        return answer.read()


def ask(url, messages):
    """Ask one thing; return predicted and delivered cached tokens."""
    body = json.dumps({"model": "tiny", "messages": messages, "max_tokens": 1}).encode()
    request = urllib.request.Request(
        url + "/v1/chat/completions", body, {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        usage = json.load(answer)["usage"]
        return (
            int(answer.headers["x-kvbench-predicted-tokens"]),
            usage["prompt_tokens_details"]["cached_tokens"],
        )


def one_by_one(url, count, about):
    """Ask several things, twice each with others in between; return what was predicted and got.

    `about` is a word of the test's own: tests share their engines, and what one of them has asked
    is cached, and published, for all.
    """
    found = []
    for number in [*range(count), *range(count)]:
        texts = [
            f"{about} number {number % 3}. " + "the licensee may convey " * 60,
            f"and {number}?",
        ]
        roles = ("system", "user")
        found.append(
            ask(url, [{"role": r, "content": t} for r, t in zip(roles, texts, strict=True)])
        )
    return found


def test_under_load_the_index_says_what_the_pods_deliver(real_pods, tmp_path):
    """Every prompt's tokens are known; what differs is late or evicted, and rare."""
    (tmp_path / "exact.yaml").write_text(WORKLOAD)
    with exact_router(real_pods, tmp_path, "--policy", "prefix_precise") as url:
        command = [sys.executable, "-m", "kvbench.cli.main", "run", "exact.yaml", "--target", url]
        ran = subprocess.run(
            [*command, "--max-lateness", "5s"], cwd=tmp_path, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stdout + ran.stderr
        wait_exact(url, len(real_pods))
        after = one_by_one(url, 10, "load")
    (path,) = (tmp_path / "runs").iterdir()
    folder = RunFolder.open(path)
    rows, _ = read_rows(folder)
    decisions = [
        one for entries in read_decisions(folder.decisions_path).values() for one in entries
    ]
    assert len(decisions) == len(rows) == 180
    causes = [one.cause for one in decisions]
    exact = [one.exact for one in decisions]
    assert exact.count(False) <= 2, "only the first prompts come before the first event"
    assert causes.count("none") >= 0.95 * len(causes), sorted(causes)
    assert not {"template", "duplicate", "other"} & set(causes)
    assert all(predicted == cached for predicted, cached in after), after
    assert sum(cached for _, cached in after) > 0


def test_after_a_reset_nothing_is_predicted_and_nothing_delivered(real_pods, tmp_path):
    """The engine says so with its next step; the router knows it at once."""
    with exact_router(real_pods, tmp_path, "--policy", "prefix_cost", "--seed", "3") as url:
        one_by_one(url, 4, "reset")
        reset = urllib.request.Request(url + "/reset_prefix_cache", b"", method="POST")
        with urllib.request.urlopen(reset, timeout=60) as answer:
            assert json.load(answer) == {"success": True}
        found = one_by_one(url, 6, "reset")
    assert found[0][1] == 0
    assert [predicted for predicted, _ in found[3:]] == [cached for _, cached in found[3:]]


def test_who_joins_late_knows_what_the_pods_hold(real_pods, tmp_path):
    """By replay, before the first request: the very first prediction is right."""
    with exact_router(real_pods, tmp_path) as url:
        one_by_one(url, 5, "late")
    with exact_router(real_pods, tmp_path, "--seed", "9") as url:
        found = one_by_one(url, 5, "late")
    assert all(predicted == cached for predicted, cached in found), found
    assert found[0][1] > 0


def test_events_that_were_dropped_are_asked_for(real_pods, tmp_path):
    """Half of them never arrive; after the last gap is closed every prediction is right."""
    place = f"ipc://{tmp_path}/events"
    with (
        lossy(endpoints(real_pods[0])[0], place, 0.5, random.Random(4)) as lost,
        exact_router(real_pods[:1], tmp_path, heard_at=place) as url,
    ):
        one_by_one(url, 15, "lossy")
        assert lost[0] > 0
        for _ in range(3):  # a loss that nothing follows is found after five seconds of silence
            subprocess.run(["sleep", "6"], check=True)
            wait_exact(url, 1)
            predicted, cached = one_by_one(url, 1, "lossy")[1]
            assert predicted == cached > 0
        assert b"events_lost_total{" in get(url, "/metrics")


def test_a_pod_that_was_restarted_is_known_to_be_empty(tmp_path):
    """Ended and started anew at the same place: nothing of its old life is predicted."""
    serve, port = os.environ["REAL_VLLM"], free_port()
    url = f"http://127.0.0.1:{port}"
    command = [serve, str(port), "--num-gpu-blocks-override", "600"]
    with Child("first life", command, tmp_path / "first.log") as first:
        wait_healthy(first, url)
        with exact_router([url], tmp_path) as router:
            one_by_one(router, 3, "restarted")
            first.stop()
            with Child("second life", command, tmp_path / "second.log") as second:
                wait_healthy(second, url)
                wait_healthy(second, router)  # which offers it when its next probe has come back
                wait_exact(router, 1)
                found = one_by_one(router, 3, "restarted")
    assert found[0] == (0, 0)
    assert all(predicted == cached for predicted, cached in found), found
    assert found[-1][1] > 0


def test_a_model_with_windows_is_known_by_all_its_groups(tmp_path):
    """One layer sees 64 tokens back, one all: the engine keeps ends, and reuses what ends there."""
    serve, port = os.environ["REAL_VLLM"], free_port()
    url = f"http://127.0.0.1:{port}"
    kinds = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 64}
    command = [serve, str(port), "--hf-overrides", json.dumps(kinds)]
    command += ["--num-gpu-blocks-override", "600", "--no-disable-hybrid-kv-cache-manager"]
    roles = ["user", "assistant"] * 4
    with Child("windows", command, tmp_path / "windows.log") as pod:
        wait_healthy(pod, url)
        with exact_router([url], tmp_path) as router:
            found = []
            for number in [2, 1, 2, 0, 1, 2]:
                for turns in (1, 3, 5, 7):
                    texts = [f"{number} and {turn} " * 60 for turn in range(turns)]
                    subprocess.run(["sleep", "2.1"], check=True)  # until nothing is promised
                    messages = [
                        {"role": r, "content": t} for r, t in zip(roles, texts, strict=False)
                    ]
                    found.append(ask(router, messages))
            wait_exact(router, 1)
    assert all(predicted == cached for predicted, cached in found), found
    assert sum(cached for _, cached in found[8:]) > 3_000
