"""The doctor beside simulated pods: what it asks, and what the verb says."""

from __future__ import annotations

import json
import subprocess
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler

import pytest
from serving import serving

from kvbench.errors import InputError
from kvbench.stack.diagnosis import diagnose
from kvbench.stack.doctor import examine
from kvbench.stack.examined import Wish
from kvbench.stack.findings import as_text
from kvbench.stack.process import Child, kvbench_command

SICK = ("--no-enable-prefix-caching", "--block-size=32")
WELL = ("--enable-prompt-tokens-details",)
COMMON = ("--time-scale=0", "--num-gpu-blocks=1000", "--max-model-len=1024", "--exit-with-parent")


@pytest.fixture(scope="module")
def pods(tmp_path_factory):
    """Two pods: one with all that it should have, one without; and a router before both."""
    folder = tmp_path_factory.mktemp("doctor")
    events = {
        "enable_kv_cache_events": True,
        "endpoint": f"ipc://{folder}/events",
        "replay_endpoint": f"ipc://{folder}/replay",
    }
    config = f"--kv-events-config={json.dumps(events)}"
    with ExitStack() as stack:

        def start(name: str, *flags: str) -> str:
            command = kvbench_command(name, *flags)
            child = Child(name, command, folder / f"{name}-{len(flags)}.log")
            return stack.enter_context(child).wait_ready(60)

        well = start("pod", *COMMON, *WELL, config)
        sick = start("pod", *COMMON, *SICK)
        router = start("router", f"--pod={well}", f"--pod={sick}", "--exit-with-parent")
        heard = f"{well},events=ipc://{folder}/events,replay=ipc://{folder}/replay"
        yield {"well": well, "sick": sick, "router": router, "heard": heard}


@contextmanager
def telling(answers):
    """Serve JSON by path on a free port, and 404 elsewhere; yield the URL."""

    class Teller(BaseHTTPRequestHandler):
        def do_GET(self):
            body = json.dumps(answers.get(self.path)).encode()
            self.send_response(200 if self.path in answers else 404)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with serving(Teller) as url:
        yield url


def checks(pods, **options):
    """Return severity and check of what is found in examined pods, notes left out."""
    seen = examine(pods, utc=lambda: 0.0, **options)
    found = diagnose(seen.pods, Wish(), seen.routers)
    return {(f.severity, f.check) for f in found if f.severity != "note"}


def test_a_pod_that_is_well_is_found_well_and_its_events_are_heard(pods):
    """By answers, metrics and events."""
    (pod,) = examine([pods["heard"]], utc=lambda: 0.0).pods

    assert (pod.events, pod.event_block, pod.told, pod.window) == ("heard", 16, True, 1024)
    assert pod.cached == 32
    assert checks([pods["heard"]]) == {("warning", "capacity")}  # a number of blocks by hand


def test_a_pod_without_prefix_caching_is_found_out_by_its_metrics_and_by_its_answers(pods):
    """It hits nothing of a prompt that it had just been asked."""
    assert checks([pods["sick"]]) >= {("error", "prefix-caching"), ("error", "hits")}
    assert ("error", "hits") not in checks([pods["sick"]], probe=False)


def test_behind_a_router_all_pods_are_examined_and_compared(pods):
    """They differ in their blocks."""
    seen = examine([pods["router"]], utc=lambda: 0.0, probe=False)

    assert [pod.url for pod in seen.pods] == [pods["well"], pods["sick"]]
    assert set(seen.routers[0].trust.values()) <= {"cold"}
    assert ("error", "block-size") in checks([pods["router"]], probe=False)


@pytest.mark.parametrize(
    ("said", "draining", "unhealthy"),
    [
        ({"healthy": True, "draining": True, "trouble": None}, True, None),
        ({"healthy": False, "draining": True, "trouble": None}, True, None),  # as 0.1 says it
        ({"healthy": False, "draining": True, "trouble": "refused"}, True, "refused"),
        ({"healthy": False, "draining": False, "trouble": None}, False, "no reason given"),
        ({"healthy": True}, False, None),
    ],
)
def test_a_pod_that_its_router_drains_is_not_taken_for_ill(pods, said, draining, unhealthy):
    """Unless the router names a trouble as well."""
    with telling({"/pods": {"pods": [{"pod": pods["well"], **said}]}}) as router:
        (pod,) = examine([router], utc=lambda: 0.0, probe=False).pods

    assert (pod.draining, pod.unhealthy) == (draining, unhealthy)


def test_a_pod_that_is_given_and_behind_a_router_is_examined_once(pods):
    """With the events that it was given with and what the router says of it; a router, too."""
    by_name = pods["heard"].replace("127.0.0.1", "localhost", 1)
    said = {"pod": pods["well"], "healthy": False, "draining": True, "trouble": None}
    with telling({"/pods": {"pods": [said]}}) as router:
        for targets in ([pods["heard"], router, f"{router}/"], [router, by_name]):
            seen = examine(targets, utc=lambda: 0.0)
            found = diagnose(seen.pods, Wish(), seen.routers)

            assert [(pod.events, pod.draining) for pod in seen.pods] == [("heard", True)]
            assert len(seen.routers) == 1
            assert len(set(found)) == len(found)
            assert {f.check for f in found} == {"capacity", "hashes", "healthy"}
            shown = as_text(seen.pods, found)
            assert shown.count(" hashes: ") == 1
            assert shown.endswith("0 errors, 1 warning, 2 notes")


def test_pods_behind_paths_of_one_gateway_are_pods_of_their_own(pods):
    """They share host and port."""
    seen = examine([f"{pods['well']}/a", f"{pods['well']}/b"], utc=lambda: 0.0, probe=False)

    assert [pod.name.rpartition("/")[2] for pod in seen.pods] == ["a", "b"]


@pytest.mark.parametrize(
    ("target", "message", "hint"),
    [
        (
            "127.0.0.1:28111,events=tcp://h:1",
            "URL: expected a URL such as http://127.0.0.1:8000, got '127.0.0.1:28111'",
            "put the scheme in front: http://127.0.0.1:28111,events=tcp://h:1",
        ),
        ("ftp://x", "URL: expected a URL such as http://127.0.0.1:8000, got 'ftp://x'", "scheme ("),
        ("http://x:1,event=y", "URL http://x:1,event=y: expected one of", "for example http://"),
    ],
)
def test_what_is_no_url_is_named_as_the_argument_that_it_is(target, message, hint):
    """And the hint names the way out."""
    with pytest.raises(InputError) as caught:
        examine([target], utc=lambda: 0.0)

    assert caught.value.message.startswith(message)
    assert caught.value.hint.startswith(hint)


@pytest.mark.parametrize("answers", [{}, {"/metrics": 1, "/v1/models": {"data": [1]}, "/pods": 2}])
def test_what_lists_no_models_is_no_server_of_models(answers):
    """Nor a pod whose metrics are missing."""
    with telling(answers) as url:
        (pod,) = examine([url], utc=lambda: 0.0).pods

    said = f"{url}/v1/models does not list models, so this is no OpenAI-compatible server"
    assert [(f.check, f.severity, f.sentence) for f in diagnose([pod], Wish())] == [
        ("reachable", "error", said)
    ]


def test_the_model_may_be_described_by_a_configuration(pods, tmp_path):
    """A window beyond what it was trained for is an error."""
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 512}')

    assert ("error", "trained-window") in checks([pods["well"]], config=tmp_path, probe=False)


@pytest.mark.stack
@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        pytest.param(["{heard}"], 0, "0 errors", id="well"),
        pytest.param(["{sick}"], 5, "error    prefix-caching", id="sick"),
        pytest.param(["{well}", "--ttft", "0.8", "--strict"], 5, "TTFT of 800 ms", id="strict"),
        pytest.param(["{well}", "http://127.0.0.1:1"], 3, "does not answer", id="gone"),
        pytest.param(["nowhere"], 2, "", id="no URL"),
    ],
)
def test_the_exit_code_says_how_bad_it_is(pods, arguments, code, said):
    """0 fine, 5 an error, 3 a pod that does not answer, 2 the command line."""
    command = kvbench_command("doctor", *(word.format(**pods) for word in arguments))
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    assert done.returncode == code, done.stdout + done.stderr
    assert said in done.stdout


@pytest.mark.stack
def test_json_has_what_the_text_has(pods):
    """For programs."""
    command = kvbench_command("doctor", pods["sick"], "--json")
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    document = json.loads(done.stdout)

    assert document["pods"][0]["block_tokens"] == 32
    by_check = {f["check"]: f for f in document["findings"]}
    assert by_check["prefix-caching"]["severity"] == "error"
    assert by_check["prefix-caching"]["fix"].startswith("--enable-prefix-caching")


@pytest.mark.stack
def test_a_simulated_pod_with_the_memory_that_its_device_has_is_strictly_well(tmp_path):
    """Nobody set its number of blocks, and they hold four requests of full length."""
    flags = ("--time-scale=0", "--block-size=128", "--max-model-len=8192", "--exit-with-parent")
    with Child("pod", kvbench_command("pod", *flags), tmp_path / "pod.log") as pod:
        command = kvbench_command("doctor", pod.wait_ready(60), "--strict")
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    assert (done.returncode, done.stderr) == (0, "")
    assert "0 errors, 0 warnings" in done.stdout
