"""Pods that break in every way and clients that vanish, all at once: nothing is lost or leaked."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from router.fakes import CHAT, Client, House, Reply, ask, chat, chunk, fine, run, until

from kvbench.http.heads import Head
from kvbench.router.forward import Limits
from kvbench.router.journal import Journal

NUMBERS = itertools.count()
PIECES = [b"data: %d\n\n" % number for number in range(4)]
WHOLE = b"".join(map(chunk, [*PIECES, b""]))


async def well(call):
    """Stream an answer in full."""
    await call.begin_stream(*PIECES)
    await call.end_stream()


async def dies_at_once(call):
    """Close the connection."""
    call.cut()


async def resets(call):
    """The same without manners."""
    call.cut(reset=True)


async def half_a_head(call):
    """Die in the middle of the head."""
    await call.send(b"HTTP/1.1 200 OK\r\ncontent-le")
    call.cut()


async def babbles(call):
    """Answer with what is no HTTP."""
    await call.send(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 garbage \r\n\r\n")


async def breaks_off(call):
    """Die in the middle of a stream."""
    await call.begin_stream(*PIECES[:2])
    call.cut()


async def bad_chunks(call):
    """Frame an answer wrongly."""
    await call.begin_stream(PIECES[0])
    await call.send(b"zz\r\nnonsense\r\n")
    await call.gone()


async def hangs(call):
    """Never answer."""
    call.pod.hanging.append(call.header("x-request-id"))
    await call.gone()


BEFORE = (dies_at_once, resets, half_a_head, babbles)
ANY = (*BEFORE, breaks_off, bad_chunks, hangs, well, well)


def by_chance(seed: int, scripts):
    """Return a script that does one of these each time."""
    generator = random.Random(seed)

    async def script(call):
        await generator.choice(scripts)(call)

    return script


def identity() -> str:
    """Return the header of a request of which it can be told that its pod hangs."""
    return f"x-request-id: {next(NUMBERS)}"


async def stay(house: House) -> Reply | None:
    """Ask and read all of the answer; None if the connection ended before its head."""
    client = await Client.to(house.url)
    try:
        client.send("POST", CHAT, chat("hi", stream=True), identity())
        return await client.reply()
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    finally:
        client.vanish()


MOMENTS = ("at once", "soon", "head", "chunk")


async def vanish(house: House, moment: str) -> None:
    """Ask, and leave at some moment."""
    client = await Client.to(house.url)
    client.send("POST", CHAT, chat("hi" * 100, stream=True), identity())
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        if moment == "at once":
            await asyncio.sleep(0)
        elif moment == "soon":
            await asyncio.sleep(0.01)
        else:
            _, headers = await client.head()
            if moment == "chunk" and "transfer-encoding" in headers:
                await client.chunk()
    client.vanish()


async def pass_time(house: House, tasks: list[asyncio.Task]) -> None:
    """Wait until all are done; meanwhile pods that hang run out of time."""
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0.01)
        hanging = {name for pod in house.pods for name in pod.hanging}
        for one in list(house.router.fleet.under_way):
            if one._request.id in hanging and one._upstream is not None:
                one.too_late()
    await asyncio.gather(*tasks)


async def calm(house: House) -> None:
    """Wait until nothing is under way, and see that nothing has stayed behind."""
    fleet = house.router.fleet
    await until(lambda: not fleet.under_way)
    fleet.sweep()
    assert house.in_flight() == [(0, 0)] * len(house.pods)
    room = house.router.intake.room
    assert room is None or (room.inside, room.waiting) == (0, 0)


async def ended(house: House) -> float:
    """Return how many requests have ended, however they did."""
    text = (await ask(house.url, "GET", "/metrics")).body.decode()
    lines = [line for line in text.splitlines() if line.startswith("kvbench_router_requests_total")]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


@settings(max_examples=20)
@given(
    st.lists(
        st.tuples(st.sampled_from(ANY), st.sampled_from(["stay", *MOMENTS])),
        min_size=1,
        max_size=12,
    ),
    st.integers(1, 3),
    st.integers(0, 4),
)
def test_after_any_history_nothing_is_in_flight_and_each_request_has_ended_once(
    history, places, queue
):
    """Pods that behave in any way, clients that leave at any time, places that are too few."""

    async def case():
        pending = [script for script, _ in history]

        async def script(call):
            await (pending.pop() if pending else well)(call)

        house = House(script, script, max_in_flight=places, queue=queue, policy="prefix_cost")
        async with house:
            guests = [
                asyncio.ensure_future(vanish(house, act)) for _, act in history if act != "stay"
            ]
            stayed = [asyncio.ensure_future(stay(house)) for _, act in history if act == "stay"]
            await pass_time(house, [*guests, *stayed])
            await calm(house)
            assert all(task.result() is not None for task in stayed)
            assert len(stayed) <= await ended(house) <= len(history)

    run(case)


@pytest.mark.parametrize("policy", ["least_load", "prefix_cost", "round_robin"])
def test_while_one_pod_is_well_no_request_is_lost_that_could_be_answered(policy):
    """However the others break before they answer: each is answered in full, by the one."""

    async def case():
        scripts = [well, *(by_chance(seed, BEFORE) for seed in range(3))]
        async with House(*scripts, policy=policy) as house:
            for _ in range(4):
                replies = await asyncio.gather(*(stay(house) for _ in range(50)))
                assert [(reply.status, reply.body) for reply in replies] == [(200, WHOLE)] * 50
                await calm(house)
            assert await ended(house) == 200, "each ends once"

    run(case)


@pytest.mark.parametrize("seed", range(3))
def test_whatever_pods_and_clients_do_every_place_is_given_back(seed):
    """And who stays gets a whole answer, one that is seen to be cut, or an error; never silence."""

    async def case():
        generator = random.Random(seed)
        scripts = [by_chance(seed * 10 + number, ANY) for number in range(4)]
        settings = {
            "policy": "prefix_cost",
            "max_in_flight": 40,
            "queue": 400,
        }
        async with House(*scripts, **settings) as house:
            guests = [
                asyncio.ensure_future(vanish(house, generator.choice(MOMENTS))) for _ in range(150)
            ]
            residents = [asyncio.ensure_future(stay(house)) for _ in range(60)]
            await pass_time(house, [*guests, *residents])
            for task in residents:
                reply = task.result()
                assert reply is not None
                assert reply.status in {200, 502, 503, 504}
                if reply.status == 200:
                    assert reply.whole == (reply.body == WHOLE)
                else:
                    assert reply.json()["error"]["code"] == reply.status
            await calm(house)

    run(case)


def test_what_vanished_clients_leave_in_memory_is_bounded():
    """No load, no place in the queue, no memory; the next is answered at once."""

    async def case():
        generator = random.Random(1)
        async with House(well, hangs, max_in_flight=64, queue=1000) as house:
            house.router.fleet.account.journal = Journal(most=100)  # full sooner than a thousand

            async def wave(number: int) -> int:
                guests = [
                    asyncio.ensure_future(vanish(house, generator.choice(MOMENTS)))
                    for _ in range(number)
                ]
                await pass_time(house, guests)
                await calm(house)
                await until(lambda: not house.router._server.connections)
                gc.collect()
                kinds = [type(thing) for thing in gc.get_objects()]
                ours = [kind for kind in kinds if str(kind.__module__).startswith("kvbench.")]
                return len(ours) - ours.count(Head)  # a thousand of these, then they are dropped

            kept = [await wave(150) for _ in range(3)]
            assert kept[-1] <= kept[-2] + 12, "the last hundred decisions are kept, and no more"
            house.pods[1].script = fine
            assert (await ask(house.url, "POST", CHAT, chat("hi"))).status == 200

    run(case)


def test_five_hundred_streams_at_once_are_all_answered_in_full():
    """Nobody is put off, nor waits for a connection of a pool: pods take what they take."""

    async def case():
        all_here = asyncio.Event()
        here = itertools.count(1)

        async def together(call):
            await call.begin_stream(PIECES[0])
            if next(here) == 500:
                all_here.set()
            await all_here.wait()
            await call.send(*map(chunk, PIECES[1:]))
            await call.end_stream()

        async with House(together, together, together) as house:
            asked = [ask(house.url, "POST", CHAT, chat(f"{n}", stream=True)) for n in range(500)]
            replies = await asyncio.gather(*asked)
            assert {(reply.status, reply.body) for reply in replies} == {(200, WHOLE)}
            await calm(house)

    run(case)


def test_a_pod_that_restarts_empty_is_believed_to_hold_nothing():
    """Its connections break, nobody listens, it comes back: all without a request lost."""

    async def case():
        async with House(well, well, policy="prefix_cost") as house:
            body = chat("x" * 4000, stream=True)
            first = await ask(house.url, "POST", CHAT, body)
            holder = next(p for p in house.pods if p.name == first.headers["x-kvbench-pod"])
            other = next(p for p in house.pods if p is not holder)
            again = await ask(house.url, "POST", CHAT, body)
            assert again.headers["x-kvbench-predicted-tokens"] == str(4000 // 256 * 64)

            await holder.stop()
            moved = await ask(house.url, "POST", CHAT, body)
            assert (moved.status, moved.headers["x-kvbench-pod"]) == (200, other.name)
            await holder.start()
            pods = house.router.fleet.membership.pods
            house.router.fleet.membership.probed(pods[other.name], "refused", refused=True)
            back = await ask(house.url, "POST", CHAT, body)
            assert back.headers["x-kvbench-pod"] == holder.name
            assert back.headers["x-kvbench-predicted-tokens"] == "0"

    run(case)


def test_a_bug_in_a_policy_costs_one_request_and_no_place():
    """It is answered with 500 and logged; the next is served."""

    async def case():
        async with House(fine) as house:
            policy = house.router.fleet.policies.default
            choose = policy.choose

            def fails(*_arguments):
                raise ZeroDivisionError

            policy.choose = fails
            reply = await ask(house.url, "POST", CHAT, chat("hi"))
            assert (reply.status, reply.json()["error"]["type"]) == (500, "InternalServerError")
            policy.choose = choose
            assert (await ask(house.url, "POST", CHAT, chat("hi"))).status == 200
            await calm(house)

    run(case)


def test_a_pod_that_hangs_is_given_up_in_time():
    """The limits are the operator's."""

    async def case():
        limits = Limits(connect_s=1.0, first_byte_s=0.05, idle_s=0.05)

        async def stalls(call):
            await call.begin_stream(PIECES[0])
            await call.gone()

        async with House(hangs, limits=limits) as house:
            reply = await ask(house.url, "POST", CHAT, chat("hi"))
            assert reply.status == 504
            house.pods[0].script = stalls
            reply = await stay(house)
            assert (reply.status, reply.whole) == (200, False)
            await calm(house)

    run(case)


def test_a_pod_that_is_only_a_listener_is_left_to_the_others():
    """It accepts and closes, again and again."""

    async def case():
        async with House(well, dies_at_once) as house:
            for _ in range(20):
                reply = await stay(house)
                assert reply.body == WHOLE
            assert len(house.pods[1].calls) < 8, "the breaker opens"

    run(case)
