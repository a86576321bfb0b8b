"""Pods asked for their models, and requests that go by them."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest
from router.fakes import CHAT, Client, FakePod, House, ask, chat, chunk, fine, run, until


class Zoo(House):
    """A house whose pods serve these models: a letter each; "" is a pod that does not say."""

    def __init__(self, *models: str, **settings) -> None:
        super().__init__(*[fine] * len(models), **{"probe_every_s": 0.005, **settings})
        for pod, names in zip(self.pods, models, strict=True):
            pod.models = list(names) or None

    async def asked(self, path: str, model: str) -> tuple[int, FakePod | None]:
        """Ask for a model; return the status and who answered."""
        body = json.dumps({"model": model, "prompt": "hi", "input": "hi"}).encode()
        reply = await ask(self.url, "POST", path, body)
        name = reply.headers.get("x-kvbench-pod")
        return reply.status, next((pod for pod in self.pods if pod.name == name), None)


def test_a_request_goes_to_a_pod_that_serves_its_model():
    """Prompts, embeddings and tokens alike; whatever is less loaded."""

    async def case():
        async with Zoo("ax", "bx") as house:
            await house.known()
            for path in ("/v1/completions", "/v1/responses", "/v1/embeddings", "/tokenize"):
                for model, number in (("a", 0), ("b", 1)):
                    for _ in range(3):
                        assert await house.asked(path, model) == (200, house.pods[number])
            assert (await house.asked("/v1/completions", "x"))[0] == 200
            assert (await ask(house.url, "POST", "/v1/embeddings", b"not JSON")).status == 200
            assert await house.metric("kvbench_router_model_pods", model="x") == 2
            assert await house.metric("kvbench_router_model_pods", model="a") == 1

    run(case)


def test_a_model_that_no_pod_serves_is_404_as_vllm_says_it():
    """Before any pod is asked."""

    async def case():
        async with Zoo("a", "b") as house:
            await house.known()
            for path in (CHAT, "/v1/embeddings"):
                reply = await ask(house.url, "POST", path, chat("hi"))
                assert reply.status == 404
                assert reply.json()["error"] == {
                    "message": "The model `m` does not exist. The pods serve a, b.",
                    "type": "NotFoundError",
                    "param": "model",
                    "code": 404,
                }
            assert [pod.calls for pod in house.pods] == [[], []]

    run(case)


def test_a_model_whose_pods_are_down_is_unavailable_and_not_unknown():
    """The others do not stand in for them."""

    async def case():
        async with Zoo("a", "b") as house:
            await house.known()
            pod = house.pods[0]
            await pod.stop()
            await until(lambda: house.router.fleet.membership.pods[pod.name].down)
            reply = await ask(house.url, "POST", CHAT, json.dumps({"model": "a"}).encode())

            assert reply.status == 503
            assert reply.json()["error"]["message"] == (
                f"No pod can take the request. {pod.name}: connection refused."
            )
            assert (await house.asked(CHAT, "b"))[0] == 200
            await pod.start()

    run(case)


def test_a_pod_that_comes_back_with_another_model_is_noticed(caplog):
    """And one that has loaded another is asked when somebody wants it. Only its end is trouble."""
    caplog.set_level(logging.INFO, "kvbench")

    async def case():
        async with Zoo("a", "b") as house:
            await house.known()
            models, pod = house.router.fleet.models, house.pods[0]
            await pod.stop()
            await until(lambda: house.router.fleet.membership.pods[pod.name].down)
            pod.models = ["c"]
            await pod.start()
            await until(lambda: models.of(pod.name) == ["c"])
            assert await house.asked(CHAT, "c") == (200, pod)
            assert (await house.asked(CHAT, "a"))[0] == 404
            assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
                *[("INFO", f"{pod.name} joined") for pod in house.pods],
                ("WARNING", f"{pod.name} is down: connection refused"),
                ("INFO", f"{pod.name} is up again"),
                ("INFO", f"{pod.name} now serves c"),
            ]

            await until(lambda: not models.doubted(house.pods[1].name))
            house.pods[1].models = ["b", "adapter"]
            assert (await house.asked(CHAT, "adapter"))[0] == 404
            await until(lambda: models.of(house.pods[1].name) == ["b", "adapter"])
            assert await house.asked(CHAT, "adapter") == (200, house.pods[1])

    run(case)


def test_the_models_of_all_pods_are_listed_together():
    """Each as its first pod describes it; a pod that does not say adds none."""

    async def case():
        async with Zoo("ax", "bx", "") as house:
            await house.known()
            reply = await ask(house.url, "GET", "/v1/models")
            found = {entry["id"]: entry["root"] for entry in reply.json()["data"]}
            assert found == {
                "a": house.pods[0].name, "x": house.pods[0].name, "b": house.pods[1].name,
            }  # fmt: skip
            assert reply.json()["object"] == "list"
            listing = (await ask(house.url, "GET", "/pods")).json()["pods"]
            assert [entry["models"] for entry in listing] == [["a", "x"], ["b", "x"], None]

    run(case)


def test_one_model_is_shown_as_it_stands_in_the_list():
    """Whatever its name has in it; one that nobody serves is 404, one that may be is asked for."""

    async def case():
        async with Zoo("a", "b", "") as house:
            house.pods[1].models = ["org/b v1"]
            known = house.router.fleet.models
            await until(lambda: known.of(house.pods[1].name) == ["org/b v1"])
            await house.known()
            for path in ("org/b%20v1", "org%2Fb%20v1"):
                page = await ask(house.url, "GET", f"/v1/models/{path}")
                assert page.json()["id"] == "org/b v1"
            await ask(house.url, "GET", "/v1/models/c")
            assert [call.target for call in house.pods[2].calls][-1:] == ["/v1/models/c"]
        async with Zoo("a", "b") as house:
            await house.known()
            page = await ask(house.url, "GET", "/v1/models/c")
            assert page.status == 404
            assert page.json()["error"]["param"] == "model"
            assert not any(pod.calls for pod in house.pods)

    run(case)


def sleeper(levels: list[int]):
    """Return a script for /metrics: a pod that is in the last of these states; -1 is awake."""

    async def script(call):
        awake, offloaded = float(levels[-1] < 0), float(levels[-1] == 1)
        line = 'vllm:engine_sleep_state{engine="0",model_name="m",sleep_state="%s"} %s\n'
        text = line % ("awake", awake) + line % ("weights_offloaded", offloaded)
        await call.answer(text.encode())

    return script


def test_a_pod_that_sleeps_gets_no_requests_and_its_cache_is_forgotten(caplog):
    """Its health is good, and it would take requests and leave them waiting."""
    caplog.set_level(logging.INFO, "kvbench.router.probing")

    async def case():
        states = [-1]
        async with House(fine, fine, policy="prefix_estimate", probe_every_s=0.005) as house:
            pod, other = house.pods
            pod.metrics = sleeper(states)
            known = house.router.fleet.membership.pods[pod.name]
            await until(lambda: known.probes_failed == 0)
            other.healthy = False
            await until(lambda: house.router.fleet.membership.pods[other.name].down)
            prompt = chat("the river " * 200)
            for cached in (False, True):
                reply = await ask(house.url, "POST", CHAT, prompt)
                assert reply.headers["x-kvbench-pod"] == pod.name
                assert (reply.headers["x-kvbench-predicted-tokens"] != "0") == cached
            states.append(1)
            await until(lambda: known.down)
            refusal = await ask(house.url, "POST", CHAT, prompt)
            assert refusal.status == 503
            assert (
                f"{pod.name}: is asleep: it has to be woken" in refusal.json()["error"]["message"]
            )
            states.append(-1)
            await until(lambda: not known.down)
            reply = await ask(house.url, "POST", CHAT, prompt)
            assert reply.headers["x-kvbench-predicted-tokens"] == "0"
            states.append(0)
            await until(lambda: known.down)
            assert known.trouble == "is paused: it has to be woken (POST /wake_up there)"
        assert f"{pod.name} is down: is asleep" in caplog.text
        assert f"{pod.name} is up again" in caplog.text

    run(case)


@pytest.mark.parametrize(
    ("moments", "forgotten"),
    [
        (["5.5e3", "5.501e3"], True),
        (["5500", "5500"], False),
        (["5500", "5000"], False),  # another server process behind the same address
        (["5500", "NaN"], False),
        (["NaN", "5500"], False),
        (["5500", ""], False),
    ],
)
def test_a_pod_that_began_anew_between_two_probes_holds_nothing(moments, forgotten, caplog):
    """Its process began later than the one before; what says nothing changes nothing."""
    caplog.set_level(logging.INFO, "kvbench.router.probing")

    async def case():
        told, asked = moments[:1], [0]

        async def script(call):
            asked[0] += 1
            await call.answer(f"process_start_time_seconds {told[-1]}\n".encode())

        async with House(fine, policy="prefix_estimate", probe_every_s=0.005) as house:
            house.pods[0].metrics = script
            await until(lambda: asked[0] >= 2)
            prompt = chat("the river " * 200)
            await ask(house.url, "POST", CHAT, prompt)
            told.append(moments[1])
            before = asked[0]
            await until(lambda: asked[0] >= before + 3)
            reply = await ask(house.url, "POST", CHAT, prompt)
            assert (reply.headers["x-kvbench-predicted-tokens"] == "0") == forgotten
            again = await ask(house.url, "POST", CHAT, prompt)
            assert again.headers["x-kvbench-predicted-tokens"] != "0"
        assert ("has begun anew" in caplog.text) == forgotten

    run(case)


def tell_models(house: House) -> House:
    """Have the pods of a house say what they serve, so that only requests come to their scripts."""
    for pod in house.pods:
        pod.models = ["m"]
    return house


async def silent(call):
    """Take a request and leave it waiting."""
    await call.gone()


async def begins(call):
    """Say that a stream begins, and no more."""
    await call.begin_stream()
    await call.gone()


@pytest.mark.parametrize("script", [silent, begins])
@pytest.mark.parametrize("how", ["sleeps", "freezes"])
def test_what_waits_at_a_pod_that_is_down_and_silent_is_answered_by_another(how, script, caplog):
    """It would wait until the pod is woken, or for ten minutes; a stream too, before its token."""
    caplog.set_level(logging.INFO, "kvbench.router.probing")

    async def case():
        timing = {"probe_every_s": 0.005, "probe_timeout_s": 0.02}
        async with tell_models(House(script, fine, policy="round_robin", **timing)) as house:
            pod, other = house.pods
            known = house.router.fleet.membership.pods[pod.name]
            await until(lambda: known.met)
            waiting = await Client.to(house.url)
            prompt = chat("hi", stream=script is begins)
            waiting.send("POST", CHAT, prompt, "x-request-id: mine")
            call = await pod.arrivals.get()
            pod.frozen, pod.metrics = how == "freezes", sleeper([1])
            reply = await waiting.reply()
            await call.gone()

            assert (reply.status, reply.headers["x-kvbench-pod"]) == (200, other.name)
            await house.quiet()
            entries = (await ask(house.url, "GET", "/decisions/mine")).json()["decisions"]
            assert [entry["end"] for entry in entries] == ["failed", "answered"]
            assert house.in_flight() == [(0, 0), (0, 0)]
            assert await house.metric(
                "kvbench_router_errors_total", pod=pod.name, kind="unavailable"
            ) == 1  # fmt: skip
            waiting.close()

    run(case)


def test_what_waits_at_a_pod_that_is_down_stays_where_there_is_no_other_or_its_answer_has_begun():
    """A pod that is woken answers, and half an answer cannot be begun anew."""

    async def case():
        go_on = asyncio.Event()

        async def waits(call):
            if b"stream" in call.body:
                await call.begin_stream(b"1")
            await go_on.wait()
            if b"stream" in call.body:
                await call.end_stream()
            else:
                await call.answer()

        states = [-1]
        async with tell_models(House(waits, named=[], probe_every_s=0.005, admin=True)) as house:
            pod = house.pods[0]
            pod.metrics = sleeper(states)
            house.router.sources.roster.add(pod.url)
            house.router.gather_pods()
            (known,) = house.router.fleet.membership.pods.values()
            alone, begun = await Client.to(house.url), await Client.to(house.url)
            alone.send("POST", CHAT, chat("hi"))
            await pod.arrivals.get()
            begun.send("POST", CHAT, chat("hi", stream=True))
            await pod.arrivals.get()
            await begun.head()
            states.append(1)
            await until(lambda: known.down)
            probes = known.probes_failed
            await until(lambda: known.probes_failed > probes + 2)
            go_on.set()

            assert (await alone.reply()).status == 200
            assert await begun.chunk() == chunk(b"1")
            assert await begun.chunk() == chunk(b"")
            for client in (alone, begun):
                client.close()

    run(case)


def test_a_pod_that_listens_no_more_may_end_what_it_has():
    """As servers do that are told to stop: nothing is computed twice."""

    async def case():
        go_on = asyncio.Event()

        async def ends(call):
            await go_on.wait()
            await call.answer(b"done")

        settings = {"policy": "round_robin", "probe_every_s": 0.005}
        async with tell_models(House(ends, fine, **settings)) as house:
            pod, other = house.pods
            known = house.router.fleet.membership.pods[pod.name]
            await until(lambda: known.met)
            client = await Client.to(house.url)
            client.send("POST", CHAT, chat("hi"))
            await pod.arrivals.get()
            pod.server.close()
            await until(lambda: known.down)
            probes = known.probes_failed
            await until(lambda: known.probes_failed > probes + 2)
            go_on.set()
            assert (await client.reply()).body == b"done"
            assert other.calls == []
            client.close()

    run(case)


def test_a_pod_that_was_never_up_comes_up_and_not_again(caplog):
    """As one that starts together with its router."""
    caplog.set_level(logging.INFO, "kvbench.router.probing")

    async def case():
        async with House(fine, named=[], probe_every_s=0.005, admin=True) as house:
            (pod,) = house.pods
            await pod.stop()
            house.router.sources.roster.add(pod.url)
            house.router.gather_pods()
            (known,) = house.router.fleet.membership.pods.values()
            for _ in range(2):
                await until(lambda: known.down)
                await pod.start()
                await until(lambda: not known.down)
                await pod.stop()
            await until(lambda: known.down)
        probing = [one for one in caplog.records if one.name == "kvbench.router.probing"]
        said = [record.getMessage() for record in probing]
        assert [line.partition(" is ")[2] for line in said] == [
            "down: connection refused", "up",
            "down: connection refused", "up again",
            "down: connection refused",
        ]  # fmt: skip

    run(case)


@pytest.mark.parametrize(
    ("health", "models", "trouble"),
    [
        pytest.param(404, 200, None, id="no page for its health"),
        pytest.param(404, 401, None, id="nor one without a key"),
        pytest.param(401, 200, None, id="a key for everything"),
        pytest.param(404, 404, "/v1/models answered 404", id="no such API"),
        pytest.param(404, 500, "/v1/models answered 500", id="one that fails"),
        pytest.param(500, 200, "/health answered 500", id="one that says it is not well"),
    ],
)
def test_a_server_that_tells_no_health_is_well_if_it_has_openais_api(health, models, trouble):
    """OpenAI's API has no `/health`, and some servers want to know who asks."""

    async def case():
        async def serve(call):
            await call.answer(b'{"data":[{"id":"m"}]}', models)

        async with House(serve, probe_every_s=0.005) as house:
            house.pods[0].health = health
            (pod,) = house.router.fleet.membership.pods.values()
            await until(lambda: pod.probes_failed is not None)
            assert pod.trouble == trouble
            await until(lambda: pod.down == (trouble is not None))

    run(case)
