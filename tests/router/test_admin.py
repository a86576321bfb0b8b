"""Pods that come and go by hand."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest
from router.fakes import CHAT, Client, FakePod, House, ask, chat, chunk, fine, run, until


def body(url: str) -> bytes:
    """Return what is posted to add a pod."""
    return json.dumps({"url": url}).encode()


async def answering(house: House, number: int = 6) -> set[str]:
    """Return the pods that answer so many requests, sent at once."""
    asked = (ask(house.url, "POST", CHAT, chat("hi")) for _ in range(number))
    return {reply.headers["x-kvbench-pod"] for reply in await asyncio.gather(*asked)}


def test_a_pod_is_added_drained_resumed_and_removed(caplog):
    """And gets requests exactly while it should; each has its line in the log, no warning."""
    caplog.set_level(logging.INFO, "kvbench")

    async def case():
        async with House(fine, admin=True, policy="round_robin") as house:
            (first,), second = house.pods, await FakePod().start()
            house.push_async_callback(second.stop)
            for status in (201, 200):  # again is no harm
                reply = await ask(house.admin, "POST", "/pods", body(second.url))
                assert (reply.status, reply.json()["name"]) == (status, second.name)
            assert await answering(house) == {first.name, second.name}

            reply = await ask(house.admin, "POST", f"/pods/{first.name}/drain")
            assert (reply.status, reply.json()["draining"]) == (200, True)
            assert reply.json()["healthy"] is True
            assert await answering(house) == {second.name}
            assert await house.metric("kvbench_router_pod_up", pod=first.name) == 0
            assert await house.metric("kvbench_router_pod_draining", pod=first.name) == 1
            await ask(house.admin, "POST", f"/pods/{first.name}/resume")
            assert await answering(house) == {first.name, second.name}

            reply = await ask(house.admin, "DELETE", f"/pods/{second.name}")
            assert (reply.status, reply.json()["removed"]) == (200, True)
            assert await answering(house) == {first.name}
            listing = (await ask(house.admin, "GET", "/pods")).json()
            assert [pod["name"] for pod in listing["pods"]] == [first.name]
            assert listing["sources"] == [
                {"source": "--pod", "pods": [first.name], "trouble": None}
            ]
            assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
                ("INFO", f"{first.name} joined"),
                ("INFO", f"{second.name} joined"),
                ("INFO", f"{first.name}: drain, by the admin API"),
                ("INFO", f"{first.name}: resume, by the admin API"),
                ("INFO", f"{second.name} left: it gets no more requests, those that it has end"),
            ]

    run(case)


def test_the_last_pod_may_be_removed_and_added_again():
    """In between there is nobody, and what had been counted of it is dropped."""

    async def case():
        async with House(fine, admin=True) as house:
            (pod,) = house.pods
            await answering(house, 1)
            await ask(house.admin, "DELETE", f"/pods/{pod.name}")
            reply = await ask(house.url, "POST", CHAT, chat("hi"))
            assert reply.status == 503
            assert reply.json()["error"]["message"] == (
                "No pod can take the request. There is none."
            )
            house.router.fleet.sweep()
            metrics = (await ask(house.admin, "GET", "/metrics")).body.decode()
            assert f'pod="{pod.name}"' not in metrics

            await ask(house.admin, "POST", "/pods", body(pod.url))
            assert await answering(house, 1) == {pod.name}

    run(case)


@pytest.mark.parametrize("act", ["drain", "remove"])
def test_streams_of_a_pod_that_leaves_go_on_to_their_end(act):
    """And only then is it forgotten."""

    async def case():
        go_on = asyncio.Event()

        async def slowly(call):
            await call.begin_stream(b"1")
            await go_on.wait()
            await call.end_stream()

        async with House(slowly, admin=True) as house:
            (pod,), fleet = house.pods, house.router.fleet
            client = await Client.to(house.url)
            client.send("POST", CHAT, chat("hi", stream=True))
            await client.head()
            await client.chunk()
            if act == "drain":
                await ask(house.admin, "POST", f"/pods/{pod.name}/drain")
            else:
                await ask(house.admin, "DELETE", f"/pods/{pod.name}")
            fleet.sweep()
            assert pod.name in fleet.pools
            assert (await ask(house.url, "POST", CHAT, chat("hi"))).status == 503

            go_on.set()
            assert await client.chunk() == chunk(b"")
            await until(lambda: not fleet.under_way)
            fleet.sweep()
            assert (pod.name in fleet.pools) == (act == "drain")
            client.close()

    run(case)


@pytest.mark.parametrize(
    ("method", "path", "sent", "status", "words"),
    [
        ("POST", "/pods", b"nope", 400, 'Expected {"url": "http://HOST:PORT"}'),
        ("POST", "/pods", b"{}", 400, "missing required field"),
        ("POST", "/pods", b'{"url": 7}', 400, "Expected `str`"),
        ("POST", "/pods", b'{"url": "\xff"}', 400, 'Expected {"url"'),
        ("POST", "/pods", b'{"url": "ftp://a"}', 400, "expected a URL such as"),
        ("POST", "/pods", b'{"url": "http://a:1", "x": 1}', 400, "unknown field"),
        ("POST", "/pods", body("http://" + "a" * 300), 400, "at most 253 characters, got 300"),
        ("POST", "/pods", body("http://a/" + "b" * 9000), 400, "at most 2048 characters, got 9009"),
        ("DELETE", "/pods/a:1", b"", 404, "There is no pod a:1."),
        ("POST", "/pods/a:1/drain", b"", 404, "There is no pod a:1."),
        ("POST", "/pods/{pod}/kick", b"", 405, "Expected POST /pods/{pod}/drain"),
        ("PUT", "/pods/{pod}", b"", 405, "Expected POST /pods/{pod}/drain"),
        ("DELETE", "/pods", b"", 404, "There is no DELETE /pods."),
        ("POST", CHAT, b"{}", 404, "There is no POST /v1/chat/completions."),
        ("GET", "/", b"", 404, "There is no GET"),
    ],
)
def test_what_is_asked_wrongly_is_told_so(method, path, sent, status, words):
    """In the form of OpenAI's errors; and nothing has changed."""

    async def case():
        async with House(fine, admin=True) as house:
            name = house.pods[0].name
            reply = await ask(house.admin, method, path.replace("{pod}", name), sent)

            assert reply.status == status
            assert words.replace("{pod}", name) in reply.json()["error"]["message"]
            assert list(house.router.fleet.membership.pods) == [name]
            assert not house.router.fleet.membership.pods[name].draining

    run(case)


def test_a_page_in_a_browser_may_change_nothing():
    """It could otherwise have the prompts of all clients sent to itself."""

    async def case():
        async with House(fine, admin=True) as house:
            reply = await ask(
                house.admin, "POST", "/pods", body("http://evil:1"), "origin: http://evil"
            )
            assert reply.status == 403
            client = await Client.to(house.admin)
            client.writer.write(b"GET /pods HTTP/1.1\r\nhost: evil.example:80\r\n\r\n")
            assert (await client.reply()).status == 403
            client.close()
            assert len(house.router.fleet.membership.pods) == 1

    run(case)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("LOCALHOST:9001", 200),
        ("localhost", 200),
        ("127.0.0.1:80", 200),
        ("[::1]:9001", 200),
        ("localhost.evil:9001", 403),
        ("evil", 403),
        ("", 403),
    ],
)
def test_this_machine_is_known_by_its_names(host, status):
    """In capitals or not, with a port or without."""

    async def case():
        async with House(fine, admin=True) as house:
            client = await Client.to(house.admin)
            client.writer.write(f"GET /pods HTTP/1.1\r\nhost: {host}\r\n\r\n".encode())
            assert (await client.reply()).status == status
            client.close()

    run(case)


def test_the_admin_port_shows_health_and_resets_but_serves_no_client():
    """What the other port shows, too."""

    async def case():
        async with House(fine, admin=True) as house:
            assert (await ask(house.admin, "GET", "/health")).status == 200
            reply = await ask(house.admin, "POST", "/reset_prefix_cache")
            assert reply.json() == {"success": True}
            assert [call.target for call in house.pods[0].calls] == ["/reset_prefix_cache"]
            assert (await ask(house.url, "DELETE", f"/pods/{house.pods[0].name}")).status == 405
            assert len(house.router.fleet.membership.pods) == 1, "the other port has no such method"
            assert len(house.pods[0].calls) == 1, "nor does a pod hear of it"

    run(case)
