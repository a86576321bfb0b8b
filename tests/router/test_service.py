"""The router's own paths, its refusals, and its end."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from router.fakes import CHAT, Client, House, ask, by_turns, chat, chunk, fine, run

from kvbench.clock import WallClock
from kvbench.errors import InputError
from kvbench.metrics.router import METRICS as ROUTER
from kvbench.router.service import Router, Settings
from kvbench.router.totals import totals


async def sick(call):
    """Answer that something went wrong."""
    await call.answer(b"sick", 500)


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("GET", "/v1/models"),
        ("POST", "/v1/embeddings"),
        ("POST", "/tokenize"),
        ("POST", "/detokenize?x=1"),
        ("POST", "/v2/rerank"),
        ("GET", "/version"),
        ("DELETE", "/v1/responses/7"),
        ("GET", "/v1/chat/completions"),
    ],
)
def test_what_has_no_prompt_goes_to_the_least_loaded_pod_as_it_is(method, target):
    """Any method, any body, JSON or not."""

    async def case():
        async with House(fine, policy="session") as house:
            body = b"" if method in {"GET", "DELETE"} else b"\xff not JSON"
            reply = await ask(house.url, method, target, body)
            (call,) = house.pods[0].calls

            assert (call.method, call.target, call.body) == (method, target, body)
            assert (reply.status, reply.body) == (200, b'{"ok":true}')
            assert await house.metric("kvbench_router_requests_total",
                                      pod=house.pods[0].name, status="2xx") == 1  # fmt: skip

    run(case)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x" * 2000}]}),
        ("/v1/completions", {"prompt": "x" * 2000}),
        ("/v1/responses", {"input": "x" * 2000}),
        ("/v1/messages", {"system": "x" * 2000, "messages": [{"role": "user", "content": "x"}]}),
    ],
)
def test_a_prompt_goes_where_its_prefix_is_in_whichever_apis_form(path, body):
    """The second time it is expected on the pod that had it."""

    async def case():
        async with House(fine, fine, fine, policy="prefix_cost") as house:
            text = json.dumps({"model": "m", **body}).encode()
            first = await ask(house.url, "POST", path, text)
            second = await ask(house.url, "POST", path + "?beta=true", text)

            assert first.headers["x-kvbench-predicted-tokens"] == "0"
            assert second.headers["x-kvbench-predicted-tokens"] == str(2000 // 256 * 64)
            assert second.headers["x-kvbench-pod"] == first.headers["x-kvbench-pod"]

    run(case)


@pytest.mark.parametrize("stream", [False, True])
def test_what_is_about_a_response_goes_to_the_pod_that_made_it(stream):
    """To continue it, to read it, to cancel it; and anywhere once that pod is gone."""

    async def case():
        async def makes(call):
            made = b'{"response":{"model":"m","id":"resp_%d"}}' % call.pod.port
            if stream:
                await call.begin_stream(b"event: response.created\ndata: " + made + b"\n\n")
                await call.end_stream()
            else:
                await call.answer(made)

        async with House(makes, makes, makes, policy="round_robin") as house:
            for _ in house.pods:
                await ask(house.url, "POST", "/v1/responses", b'{"input":"hi"}')
            for pod in house.pods:
                name = f"resp_{pod.port}"
                body = json.dumps({"input": "so?", "previous_response_id": name}).encode()
                for method, target, text in (
                    ("POST", "/v1/responses", body),
                    ("GET", f"/v1/responses/{name}?stream=true", b""),
                    ("POST", f"/v1/responses/{name}/cancel", b""),
                ):
                    reply = await ask(house.url, method, target, text)
                    assert reply.headers["x-kvbench-pod"] == pod.name

            house.router.fleet.remove(house.pods[0].name)
            name = f"resp_{house.pods[0].port}"
            reply = await ask(house.url, "GET", f"/v1/responses/{name}")
            assert reply.headers["x-kvbench-pod"] in {pod.name for pod in house.pods[1:]}

    run(case)


def test_an_answer_to_head_has_a_length_and_no_body():
    """And the connection serves the next request."""

    async def case():
        async def head(call):
            await call.send(b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n")

        async with House(head) as house:
            client = await Client.to(house.url)
            for _ in range(2):
                reply = await client.ask("HEAD", "/v1/models")
                assert (reply.status, reply.headers["content-length"]) == (200, "99")
            client.close()

    run(case)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        pytest.param(b"nope", "The request body is not JSON", id="not JSON"),
        pytest.param(b"", "The request body is not JSON", id="empty"),
        pytest.param(b'{"model":"\xff"}', "Invalid UTF-8", id="not UTF-8"),
        pytest.param(b"[]", "not an object", id="no object"),
        pytest.param(b'{"messages":' + b"[" * 50_000, "nested too deeply", id="nested"),
    ],
)
def test_a_prompt_that_is_no_json_is_refused_before_any_pod_is_asked(body, words):
    """400 in the form of OpenAI's errors."""

    async def case():
        async with House(fine) as house:
            reply = await ask(house.url, "POST", CHAT, body)

            assert reply.status == 400
            error = reply.json()["error"]
            assert (error["type"], error["param"], error["code"]) == ("BadRequestError", None, 400)
            assert words in error["message"]
            assert house.pods[0].calls == []
            assert await house.metric("kvbench_router_refusals_total", status="400") == 1

    run(case)


def test_an_unknown_shape_and_ten_thousand_messages_are_passed_on():
    """The pod judges."""

    async def case():
        async with House(fine, policy="prefix_cost") as house:
            many = json.dumps({"messages": [{"role": "user", "content": "hi"}] * 10_000}).encode()
            for body in (b"{}", b'{"messages": 3}', many):
                assert (await ask(house.url, "POST", CHAT, body)).status == 200
            assert [call.body for call in house.pods[0].calls][-1] == many

    run(case)


@pytest.mark.parametrize("target", ["/", "/faults", "/sleep", "/x/../sleep"])
def test_what_the_router_does_not_serve_is_404(target):
    """It passes nothing on that it does not know."""

    async def case():
        async with House(fine) as house:
            reply = await ask(house.url, "GET", target)

            assert reply.status == 404
            assert reply.json()["error"]["message"] == f"The router does not serve {target}."
            assert house.pods[0].calls == []

    run(case)


def test_without_pods_the_answer_is_503_with_each_pods_trouble():
    """And health says the same."""

    async def case():
        async with House(fine, fine) as house:
            for pod in house.router.fleet.membership.pods.values():
                house.router.fleet.membership.probed(pod, "connection refused", refused=True)
            one, two = (pod.name for pod in house.pods)
            sentence = (
                f"No pod can take the request. {one}: connection refused; {two}: "
                "connection refused."
            )

            for method, target in (("POST", CHAT), ("GET", "/v1/models"), ("GET", "/health")):
                reply = await ask(
                    house.url, method, target, chat("hi") if method == "POST" else b""
                )
                assert reply.status == 503
                assert reply.headers["retry-after"] == "1"
                assert reply.json()["error"]["message"] == sentence
            assert house.in_flight() == [(0, 0), (0, 0)]

    run(case)


def test_probes_find_a_pod_down_and_up_again():
    """A pod that nobody listens for is not offered; one that answers is."""

    async def case():
        async with House(fine, fine, probe_every_s=0.01) as house:
            pod = house.pods[0]
            state = house.router.fleet.membership.pods[pod.name]
            await pod.stop()
            while not state.down:  # noqa: ASYNC110 - probes come by the clock
                await asyncio.sleep(0.001)
            assert (await ask(house.url, "GET", "/health")).status == 200
            listing = (await ask(house.url, "GET", "/pods")).json()["pods"]
            assert [entry["healthy"] for entry in listing] == [False, True]
            assert listing[0]["trouble"] == "connection refused"
            await pod.start()
            while state.down:  # noqa: ASYNC110 - probes come by the clock
                await asyncio.sleep(0.001)
            listing = (await ask(house.url, "GET", "/pods")).json()["pods"]
            assert [entry["healthy"] for entry in listing] == [True, True]

    run(case)


def test_a_pod_whose_health_is_bad_thrice_is_down():
    """It answers, but says that it should not be asked."""

    async def case():
        async with House(fine, probe_every_s=0.01) as house:
            house.pods[0].healthy = False
            state = house.router.fleet.membership.pods[house.pods[0].name]
            while not state.down:  # noqa: ASYNC110 - probes come by the clock
                await asyncio.sleep(0.001)

            assert state.trouble == "/health answered 503"
            assert state.probes_failed >= 3

    run(case)


def test_the_list_of_pods_says_what_is_known_of_each():
    """For people and for the tools that ask."""

    async def case():
        async with House(fine) as house:
            await ask(house.url, "POST", CHAT, chat("hi"))

            assert (await ask(house.url, "GET", "/pods")).json() == {
                "pods": [
                    {
                        "name": house.pods[0].name,
                        "url": house.pods[0].url,
                        "pod": house.pods[0].url,
                        "healthy": True,
                        "in_flight": 0,
                        "in_flight_prefill_tokens": 0,
                        "others_in_flight": 0,
                        "requests": 1,
                        "draining": False,
                        "models": None,
                        "cache": None,
                        "trouble": None,
                    }
                ]
            }

    run(case)


ELSEWHERE = (
    "predicted_cached_tokens", "index", "trust", "event", "prediction", "regret", "miscounted",
    "tokens_known", "shadow", "others",
    "breaker", "draining", "model_pods", "source_ok", "queue", "limited", "key_",
)  # fmt: skip
"""What only exact routing moves, see test_exact.py; and what only faults, keys and limits do, see
test_service_limits.py, test_admin.py, test_discovery.py, test_probing.py and test_others.py."""


def test_every_metric_of_the_catalogue_moves():
    """One good day and one bad day, and no family stands at zero."""

    async def case():
        async def counts(call):
            usage = b'{"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":4}}}'
            await call.begin_stream(usage)
            await call.end_stream()

        async def dies(call):
            await call.send(b"HTTP/1.1 2")
            call.cut()

        async def waits(call):
            await call.gone()

        async with House(
            by_turns(counts, dies, waits), by_turns(counts), policy="round_robin"
        ) as house:
            body = chat("x" * 600, stream=True)
            for _ in range(3):  # the third fails on the first pod and is answered by the second
                assert (await ask(house.url, "POST", CHAT, body)).status == 200
            client = await Client.to(house.url)
            client.send("POST", CHAT, body)
            while len(house.pods[0].calls) < 3:
                await house.pods[0].arrivals.get()
            await ask(house.url, "POST", CHAT, b"no")
            text = (await ask(house.url, "GET", "/metrics")).body.decode()
            client.vanish()
            await house.quiet()

            for metric in ROUTER:
                family = metric.name + ("_count" if metric.kind == "histogram" else "")
                samples = [line for line in text.splitlines() if line.startswith(family)]
                moved = any(float(line.rpartition(" ")[2]) > 0 for line in samples)
                assert moved or any(word in family for word in ELSEWHERE), family

    run(case)


@pytest.mark.parametrize(
    ("answers", "status", "success"),
    [
        pytest.param([b'{"success":true}', b""], 200, True, id="all pods did"),
        pytest.param([b"", b'{"success": false}'], 200, False, id="blocks were in use"),
    ],
)
def test_a_reset_reaches_every_pod(answers, status, success):
    """And says whether all have done it."""

    async def case():
        def script(body):
            async def reset(call):
                await call.answer(body)

            return reset

        async with House(*map(script, answers)) as house:
            reply = await ask(house.url, "POST", "/reset_prefix_cache")

            assert (reply.status, reply.json()) == (status, {"success": success})
            for pod in house.pods:
                (call,) = pod.calls
                assert (call.method, call.target) == ("POST", "/reset_prefix_cache")

    run(case)


def test_a_reset_that_a_pod_refuses_is_an_error_that_names_it():
    """A pod outside of dev mode answers 404."""

    async def case():
        async def missing(call):
            await call.answer(b"", 404)

        async with House(fine, missing) as house:
            reply = await ask(house.url, "POST", "/reset_prefix_cache")

            assert reply.status == 502
            assert reply.json()["error"]["message"] == (
                f"Not every pod was reset: {house.pods[1].name}: 404."
            )
            assert (await ask(house.url, "GET", "/reset_prefix_cache")).status == 405

    run(case)


def test_after_a_reset_nothing_is_believed_cached():
    """The policies forget what the pods have forgotten."""

    async def case():
        async with House(fine, policy="prefix_cost") as house:
            body = chat("x" * 2000)
            for expected in ("0", "448"):
                reply = await ask(house.url, "POST", CHAT, body)
                assert reply.headers["x-kvbench-predicted-tokens"] == expected
            await ask(house.url, "POST", "/reset_prefix_cache")
            reply = await ask(house.url, "POST", CHAT, body)

            assert reply.headers["x-kvbench-predicted-tokens"] == "0"

    run(case)


def test_a_session_header_keeps_a_session_on_its_pod():
    """Whatever the load, under the policy of that name."""

    async def case():
        async with House(fine, fine, fine, policy="session") as house:
            pods = set()
            for _ in range(10):
                reply = await ask(house.url, "POST", CHAT, chat("hi"), "x-session-id: ann")
                assert reply.headers["x-kvbench-reason"] == "session"
                pods.add(reply.headers["x-kvbench-pod"])

            assert len(pods) == 1

    run(case)


def test_a_request_may_choose_its_policy_where_that_is_allowed():
    """One that there is; the others learn of the placement."""

    async def case():
        async with House(fine, policy="prefix_cost", allow_policy_header=True) as house:
            body = chat("x" * 2000)
            first = await ask(house.url, "POST", CHAT, body, "x-kvbench-policy: random")
            second = await ask(house.url, "POST", CHAT, body)
            wrong = await ask(house.url, "POST", CHAT, body, "x-kvbench-policy: best")

            assert first.headers["x-kvbench-policy"] == "random"
            assert second.headers["x-kvbench-policy"] == "prefix_cost"
            assert second.headers["x-kvbench-predicted-tokens"] == "448"
            assert wrong.status == 400
            assert "expected one of random, round_robin" in wrong.json()["error"]["message"]

    run(case)


def test_a_request_may_not_choose_its_policy_where_that_is_not_allowed():
    """It is told so, rather than measured under another policy than it thinks."""

    async def case():
        async with House(fine) as house:
            reply = await ask(house.url, "POST", CHAT, chat("hi"), "x-kvbench-policy: random")

            assert reply.status == 400
            assert "--allow-policy-header" in reply.json()["error"]["message"]

    run(case)


def test_requests_under_way_end_before_the_router_does():
    """New ones are refused meanwhile, so that a balancer in front asks another."""

    async def case():
        go_on = asyncio.Event()

        async def slowly(call):
            await call.begin_stream(b"1")
            await go_on.wait()
            await call.end_stream()

        async with House(slowly) as house:
            client = await Client.to(house.url)
            client.send("POST", CHAT, chat("hi", stream=True))
            await client.head()
            await client.chunk()
            stopping = asyncio.ensure_future(house.router.stop(5.0))
            await asyncio.sleep(0)
            for method, path in (("POST", CHAT), ("GET", "/health")):
                reply = await ask(house.url, method, path, chat("hi") if method == "POST" else b"")
                assert reply.status == 503
                assert reply.headers["retry-after"] == "1"
                assert reply.headers["connection"] == "close"
            assert (await ask(house.url, "GET", "/metrics")).status == 200
            go_on.set()

            assert await client.chunk() == chunk(b"")
            await stopping
            with pytest.raises(ConnectionRefusedError):
                await Client.to(house.url)
            client.close()

    run(case)


@pytest.mark.parametrize("status", [0, 200])
def test_what_is_left_at_the_end_is_cut_and_not_taken_for_left_by_its_client(status):
    """One that has seen nothing of its answer is told; the pod is not kept waiting either."""

    async def case():
        async def endless(call):
            if status:
                await call.begin_stream(b"1")
            await call.gone()

        async with House(endless) as house:
            client = await Client.to(house.url)
            client.send("POST", CHAT, chat("hi", stream=True))
            call = await house.pods[0].arrivals.get()
            if status:
                await client.head()
                await client.chunk()
            await house.router.stop(0.0)

            if status:
                with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                    await client.chunk()
            else:
                reply = await client.reply()
                assert (reply.status, reply.headers["retry-after"]) == (503, "1")
                assert reply.headers["connection"] == "close"
                assert "The router is ending" in reply.json()["error"]["message"]
            await call.gone()
            client.close()
            (entry,) = house.router.fleet.account.journal.latest(9)
            assert (entry.end, entry.status) == ("stopped", status)
            assert totals(house.router.fleet.meters) == "1 passed on (stopped: 1), 0 refused"

    run(case)


def test_wrong_settings_are_the_operators_to_mend():
    """Before anything listens."""

    async def case():
        for pods, words in (
            (["nonsense"], "--pod: expected a URL"),
            ([], "expected at least one pod"),
            (["http://a:1", "http://b:1", "http://a:1/"], "a:1 is given twice"),
        ):
            with pytest.raises(InputError, match=words):
                Router(pods, Settings(), WallClock())
        nowhere = Path("/nowhere")
        for wrong, words in (
            ({"policy": "best"}, "^--policy: expected one of"),
            ({"shadows": ("best",)}, "^--shadow: expected one of"),
            ({"keys_file": nowhere}, "^--api-keys-file /nowhere: cannot be read"),
            ({"pods_file": nowhere}, "^--pods-file /nowhere: cannot be read"),
            ({"tokenizer": nowhere}, "^--tokenizer /nowhere: no such tokenizer"),
        ):
            with pytest.raises(InputError, match=words):
                Router(["http://a:1"], Settings(**wrong), WallClock())

    run(case)
