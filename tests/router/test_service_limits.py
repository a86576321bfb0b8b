"""Keys, limits, the queue and the breaker, as clients meet them."""

from __future__ import annotations

import asyncio

import pytest
from router.fakes import CHAT, Client, House, ask, chat, chunk, fine, run, until

from kvbench.clock import VirtualClock, WallClock
from kvbench.errors import InputError
from kvbench.router.service import Router, Settings

KEYS = """keys:
  - {name: ann, key: key-of-ann, in_flight: 1}
  - {name: bob, key: key-of-bob, per_minute: 20}
  - {name: eve, key: key-of-eve}
"""
ANN, BOB, EVE = (f"authorization: Bearer key-of-{name}" for name in ("ann", "bob", "eve"))


class Gate:
    """A script that answers each request when it is told to."""

    def __init__(self) -> None:
        self.open = asyncio.Event()

    async def __call__(self, call) -> None:
        """Begin, wait, end."""
        await call.begin_stream(b"1")
        await self.open.wait()
        await call.end_stream()


@pytest.fixture
def keys(tmp_path):
    """A file of keys."""
    path = tmp_path / "keys.yaml"
    path.write_text(KEYS)
    return path


async def stream(house: House, *headers: str) -> Client:
    """Ask for a stream and read its beginning."""
    client = await Client.to(house.url)
    client.send("POST", CHAT, chat("hi", stream=True), *headers)
    await client.head()
    await client.chunk()
    return client


def test_who_has_no_key_that_is_known_is_401(keys):
    """Health and metrics are for everybody; nothing else is, and no key is in any answer."""

    async def case():
        async with House(fine, keys_file=keys) as house:
            for headers in ((), ("authorization: Bearer key-of-nobody",), ("x-api-key: ",)):
                for method, path in (("POST", CHAT), ("GET", "/v1/models"), ("GET", "/pods")):
                    body = chat("hi") if method == "POST" else b""
                    reply = await ask(house.url, method, path, body, *headers)
                    assert reply.status == 401
                    assert reply.headers["www-authenticate"] == "Bearer"
                    assert reply.json()["error"]["type"] == "AuthenticationError"
                    assert b"nobody" not in reply.body
            for path in ("/health", "/metrics"):
                assert (await ask(house.url, "GET", path)).status == 200
            assert house.pods[0].calls == []
            for header in (EVE, "x-api-key: key-of-eve"):
                assert (await ask(house.url, "POST", CHAT, chat("hi"), header)).status == 200
            assert await house.metric("kvbench_router_key_requests_total", key="eve") == 2
            assert await house.metric("kvbench_router_refusals_total", status="401") == 9

    run(case)


def test_a_browser_may_ask_without_a_key_whether_it_may_ask(keys):
    """It never sends one along with that; the pod says, and what it then asks needs a key."""

    async def case():
        async with House(fine, keys_file=keys) as house:
            preflight = "access-control-request-method: POST"
            for path, header, status in (
                (CHAT, preflight, 200),
                (CHAT, "origin: http://page", 401),
                ("/decisions", preflight, 405),
                ("/sleep", preflight, 404),
            ):
                reply = await ask(house.url, "OPTIONS", path, b"", header)
                assert reply.status == status
            assert [call.method for call in house.pods[0].calls] == ["OPTIONS"]
            assert (await ask(house.url, "POST", CHAT, chat("hi"), preflight)).status == 401

    run(case)


def test_a_key_may_have_so_many_requests_at_once(keys):
    """The next is told to come again; another key is not concerned."""

    async def case():
        gate = Gate()
        async with House(gate, keys_file=keys) as house:
            client = await stream(house, ANN)
            assert await house.metric("kvbench_router_key_in_flight", key="ann") == 1
            reply = await ask(house.url, "POST", CHAT, chat("hi"), ANN)
            assert (reply.status, reply.headers["retry-after"]) == (429, "1")
            assert reply.json()["error"]["type"] == "RateLimitError"
            assert reply.json()["error"]["message"] == (
                "The key ann has reached its limit of requests at once."
            )
            other = await stream(house, EVE)
            client.vanish()
            await until(lambda: len(house.router.fleet.under_way) == 1)
            again = await stream(house, ANN)
            gate.open.set()
            for one in (other, again):
                assert await one.chunk() == chunk(b"")
                one.close()
            await house.quiet()
            assert await house.metric("kvbench_router_key_in_flight", key="ann") == 0
            assert await house.metric(
                "kvbench_router_limited_total", key="ann", limit="in_flight") == 1  # fmt: skip

    run(case)


def test_a_key_may_have_so_many_requests_a_minute(keys):
    """Whoever comes again after the time that it was told is served."""

    async def case():
        clock = VirtualClock()
        async with House(fine, keys_file=keys, clock=clock) as house:
            for status in (200, 200, 429):
                reply = await ask(house.url, "POST", CHAT, chat("hi"), BOB)
                assert reply.status == status
            assert reply.headers["retry-after"] == "3"
            clock.advance_to(3.0)
            for status in (200, 429):
                assert (await ask(house.url, "POST", CHAT, chat("hi"), BOB)).status == status

    run(case)


def test_keys_are_read_again_when_their_file_changes(keys):
    """A bad file keeps those that there were, and what is under way stays counted."""

    async def case():
        async with House(fine, keys_file=keys, look_every_s=0.005) as house:

            async def status(header: str) -> int:
                return (await ask(house.url, "POST", CHAT, chat("hi"), header)).status

            access = house.router.access
            keys.write_text("keys:\n  - {name: new, key: key-of-new}\n")
            await until(lambda: "new" in access.holders)
            assert [await status(h) for h in (EVE, "x-api-key: key-of-new")] == [401, 200]
            keys.write_text("keys: none")
            await until(lambda: house.router._keys.trouble)
            assert await status("x-api-key: key-of-new") == 200
            assert await house.metric("kvbench_router_source_ok", source=str(keys)) == 0

    run(case)


def test_a_wrong_file_of_keys_is_said_before_anything_listens(tmp_path):
    """With its line."""
    path = tmp_path / "keys.yaml"
    path.write_text("keys:\n  - name: ann\n    key: short\n")
    with pytest.raises(InputError, match=r"keys\.yaml:3: keys\.0\.key: expected a text of 8"):
        Router(["http://a:1"], Settings(keys_file=path), WallClock())


def test_what_is_added_is_reading_too_and_not_the_time_in_the_queue():
    """Stages are parts of it; who waits ten seconds for a place has none of them added."""

    async def case():
        async with House(fine) as house:
            for _ in range(3):
                await ask(house.url, "POST", CHAT, chat("hi " * 600_000))
            stages = [
                await house.metric("kvbench_router_stage_seconds_sum", stage=stage)
                for stage in ("parse", "score")
            ]
            added = await house.metric("kvbench_router_added_latency_seconds_sum")
            assert 0 < sum(stages) < added

        clock, gate = VirtualClock(), Gate()
        async with House(gate, clock=clock, max_in_flight=1, queue=1, patience_s=60) as house:
            first = await stream(house)
            second = await Client.to(house.url)
            second.send("POST", CHAT, chat("hi", stream=True))
            await until(lambda: house.router.intake.room.waiting == 1)
            clock.advance_to(10)
            first.vanish()
            assert (await second.head())[0] == 200
            assert await house.metric("kvbench_router_queue_seconds_sum") == 10
            assert await house.metric("kvbench_router_added_latency_seconds_sum") == 0
            gate.open.set()
            second.close()

    run(case)


def test_so_many_requests_are_under_way_and_others_wait_their_turn():
    """Beyond that they are told when to come again; a client that leaves the queue is forgotten."""

    async def case():
        gate = Gate()
        async with House(gate, max_in_flight=2, queue=2) as house:
            room = house.router.intake.room
            inside = [await stream(house) for _ in range(2)]
            waiting = [await Client.to(house.url) for _ in range(2)]
            for number, client in enumerate(waiting):
                client.send("POST", CHAT, chat("hi", stream=True), f"x-number: {number}")
                await until(lambda n=number: room.waiting == n + 1)
            reply = await ask(house.url, "POST", CHAT, chat("hi"))
            assert (reply.status, reply.headers["retry-after"]) == (429, "2")
            assert reply.json()["error"]["message"] == "2 requests are under way and 2 wait."
            assert await house.metric("kvbench_router_queue") == 2
            assert await house.metric(
                "kvbench_router_limited_total", key="", limit="queue") == 1  # fmt: skip

            waiting[0].vanish()
            await until(lambda: room.waiting == 1)
            inside[0].vanish()
            assert (await waiting[1].head())[0] == 200
            assert house.pods[0].calls[-1].header("x-number") == "1"
            gate.open.set()
            await waiting[1].chunk()
            assert await waiting[1].chunk() == chunk(b"")
            await house.quiet()
            assert (room.inside, room.waiting, house.in_flight()) == (0, 0, [(0, 0)])
            assert await house.metric("kvbench_router_queue_seconds_count") == 3
            for client in (inside[1], waiting[1]):
                client.close()

    run(case)


def test_who_has_waited_too_long_is_told_so():
    """503, and when to come again."""

    async def case():
        gate = Gate()
        async with House(gate, max_in_flight=1, queue=5, patience_s=0.02) as house:
            first = await stream(house)
            reply = await ask(house.url, "POST", CHAT, chat("hi"))
            assert (reply.status, "retry-after" in reply.headers) == (503, True)
            assert reply.json()["error"]["message"] == "No place became free within 0.02 s."
            gate.open.set()
            await first.chunk()
            first.close()

    run(case)


def test_what_waits_when_the_router_ends_is_still_answered():
    """It had been taken."""

    async def case():
        gate = Gate()
        async with House(gate, max_in_flight=1, queue=5) as house:
            first, second = await stream(house), await Client.to(house.url)
            second.send("POST", CHAT, chat("hi", stream=True))
            await until(lambda: house.router.intake.room.waiting == 1)
            stopping = asyncio.ensure_future(house.router.stop(5.0))
            await asyncio.sleep(0)
            assert (await ask(house.url, "POST", CHAT, chat("hi"))).status == 503
            gate.open.set()
            assert (await first.chunk(), (await second.reply()).whole) == (chunk(b""), True)
            await stopping
            first.close()
            second.close()

    run(case)


def test_an_open_breaker_is_seen_and_so_is_its_trial():
    """Closed again, it is 0."""

    async def case():
        clock = VirtualClock()

        async def sick(call):
            await call.answer(b"", 500 if len(call.pod.calls) <= 3 else 200)

        async with House(sick, clock=clock) as house:
            (pod,) = house.pods
            states = []
            for moment in (0.0, 0.0, 0.0, 1.5):
                clock.advance_to(moment)
                states.append(await house.metric("kvbench_router_breaker", pod=pod.name))
                await ask(house.url, "POST", CHAT, chat("hi"))
            states.append(await house.metric("kvbench_router_breaker", pod=pod.name))
            assert states == [0, 0, 0, 2, 0]
            for _ in range(3):
                house.router.fleet.membership.failed(
                    house.router.fleet.membership.pods[pod.name], "broke", 1.5
                )
            assert await house.metric("kvbench_router_breaker", pod=pod.name) == 1
            reply = await ask(house.url, "POST", CHAT, chat("hi"))
            assert (reply.status, reply.headers["retry-after"]) == (503, "1")

    run(case)
