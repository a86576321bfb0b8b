"""What others have under way on a pod, told from what is ours."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from fakes_pod import make_config, running_pod
from hypothesis import given
from hypothesis import strategies as st
from router.fakes import Client, House, ask, chunk, fine, run, until

from kvbench.clock import WallClock
from kvbench.http.address import parse_address
from kvbench.policies.pod_state import PodState
from kvbench.router.membership import Lease, Membership, Pod
from kvbench.router.others import Others
from kvbench.router.service import Router, Settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from fakes_pod import RunningPod


def a_pod() -> Pod:
    """Return a pod without load."""
    address = parse_address("http://a:1")
    return Pod(address, PodState(address.name))


def read(others: Others, pod: Pod, *told: float | None) -> list[int]:
    """Have a pod read again and again; return what is laid on it after each time."""
    laid = []
    for value in told:
        others.heard(pod, others.asked(pod), value)
        laid.append(pod.others_in_flight)
    return laid


ACTS = st.lists(
    st.tuples(st.sampled_from(["take", "arrive", "leave", "release"]), st.integers(0, 7)),
    max_size=12,
)


@given(st.lists(st.tuples(ACTS, ACTS, ACTS), max_size=4), st.integers(0, 5))
def test_what_is_ours_is_never_taken_for_others(rounds, theirs):
    """Wherever between asking and hearing the pod counted: at most what others really have.

    Requests of ours lie on their pod for a part of the time for which the router counts them. They
    come and go in fours: of a single one that is miscounted once nothing would be seen.
    """
    others, pod = Others(), a_pod()
    ours: list[tuple[list[Lease], bool]] = []  # with whether the pod has them

    def act(acts):
        for what, number in acts:
            place = number % len(ours) if ours else 0
            if what == "take":
                ours.append(([Lease(pod, 100) for _ in range(4)], False))
            elif ours and what == "release":
                for lease in ours.pop(place)[0]:
                    lease.release()
            elif ours:
                ours[place] = (ours[place][0], what == "arrive")

    for before, until_counted, until_heard in rounds:
        act(before)
        mark = others.asked(pod)
        act(until_counted)
        told = 4 * sum(there for _, there in ours) + theirs
        act(until_heard)
        others.heard(pod, mark, told)

        assert 0 <= pod.others_in_flight <= theirs
        assert pod.own_in_flight == 4 * len(ours)
        assert pod.state.in_flight == 4 * len(ours) + pod.others_in_flight
        tokens = 400 * len(ours) + pod.others_prefill_tokens
        assert pod.state.in_flight_prefill_tokens == tokens


def test_what_stays_is_believed_and_what_is_seen_once_is_not():
    """Half of the way with each reading; one request for a moment is nothing."""
    assert read(Others(), a_pod(), 8, 8, 8, 8, 8) == [4, 6, 7, 8, 8]
    assert read(Others(), a_pod(), 1, 0, 0) == [0, 0, 0]
    assert read(Others(), a_pod(), 1, 1) == [0, 1]


def test_a_pod_that_stops_telling_is_forgotten_by_halves():
    """And one that has never told has nothing of others."""
    others, pod = Others(), a_pod()
    read(others, pod, *[8] * 6)

    assert read(others, pod, None, None, None, None, None) == [4, 2, 1, 0, 0]
    assert read(others, a_pod(), None) == [0]
    assert pod.state == PodState("a:1", 0, 0)


def test_the_requests_of_others_wait_for_as_much_prefill_as_ours():
    """Of which two in three have their first token, on whatever pod they are."""
    others, busy, pod = Others(), a_pod(), a_pod()
    for lease in [Lease(busy, 900) for _ in range(3)][:2]:
        lease.first_token()
    read(others, busy, 3)
    assert (busy.state.in_flight, busy.state.in_flight_prefill_tokens) == (3, 900)
    read(others, pod, 4)
    assert pod.state == PodState("a:1", 2, 600)

    others.forget(pod)
    assert pod.state == PodState("a:1", 0, 0)
    assert read(others, pod, 4) == [2]


def test_what_a_pod_says_is_bounded():
    """Whatever it says."""
    assert read(Others(), a_pod(), 1e308, -1e308) == [500_000, 250_000]


def test_a_breaker_waits_for_our_own_requests_and_not_for_others():
    """A pod in trouble is tried again once ours have ended."""
    membership = Membership([parse_address("http://a:1"), parse_address("http://b:1")])
    pod = membership.pods["a:1"]
    membership.probed(pod, None)
    for _ in range(3):
        membership.failed(pod, "broke", 0.0)
    pod.lay(5, 0)
    assert pod in membership.offered(2.0)
    lease = Lease(pod, 0)
    assert pod not in membership.offered(2.0)
    lease.release()
    assert pod.state.in_flight == 5


@asynccontextmanager
async def routing(*pods: RunningPod) -> AsyncIterator[tuple[Router, str]]:
    """Run a router in front of pods, without prefix: by load alone."""
    settings = Settings(policy="least_load", probe_every_s=0.01)
    router = Router([pod.url for pod in pods], settings, WallClock())
    url = await router.start("127.0.0.1", 0)
    try:
        yield router, url
    finally:
        await router.stop(0.0)


def prompt(tokens: int) -> tuple[str, str, bytes, str]:
    """Return a request for so many tokens."""
    body = json.dumps({"model": "tiny", "prompt": "one", "max_tokens": tokens}).encode()
    return "POST", "/v1/completions", body, "content-type: application/json"


def test_a_second_router_avoids_the_pod_that_the_first_keeps_busy():
    """Neither knows of the other; the pod tells."""

    async def case():
        async with (
            running_pod(make_config(step_s=0.05)) as busy,
            running_pod() as idle,
            routing(busy) as (first, their_url),
            routing(busy, idle) as (second, url),
        ):
            clients = [await Client.to(their_url) for _ in range(3)]
            for client in clients:
                client.send(*prompt(900))
            name, other = (pod.url.removeprefix("http://") for pod in (busy, idle))
            pod = second.fleet.membership.pods[name]
            await until(lambda: pod.others_in_flight == 3)

            for _ in range(8):
                reply = await ask(url, *prompt(1))
                assert (reply.status, reply.headers["x-kvbench-pod"]) == (200, other)
            listing = (await ask(url, "GET", "/pods")).json()["pods"]
            loads = [(one["in_flight"], one["others_in_flight"]) for one in listing]
            assert loads == [(0, 3), (0, 0)]
            second.read_levels()
            sample = second.fleet.meters.registry.get_sample_value
            assert sample("kvbench_router_others_in_flight", {"pod": name}) == 3
            assert sample("kvbench_router_in_flight", {"pod": name}) == 0
            assert first.fleet.membership.pods[name].others_in_flight == 0

            for client in clients:
                client.vanish()
            await until(lambda: pod.others_in_flight == 0)

    run(case)


@pytest.mark.parametrize("page", [None, b"\x00\xff" * 1000, b"x" * 3 * 2**20, b"# no such thing\n"])
def test_a_pod_that_does_not_tell_is_taken_as_before(page):
    """Whatever its page is, it is asked again and again and stays up."""
    asked = []

    async def metrics(call):
        asked.append(call)
        await call.answer(page or b"", 404 if page is None else 200)

    async def case():
        async with told(metrics) as house:
            await until(lambda: len(asked) > 3)
            assert house.in_flight() == [(0, 0)]
            assert await house.metric("kvbench_router_pod_up", pod=house.pods[0].name) == 1

    run(case)


def told(metrics) -> House:
    """Return a house with one pod, whose page of metrics is answered so."""
    house = House(fine, probe_every_s=0.001, probe_timeout_s=60.0)
    house.pods[0].metrics = metrics
    return house


def test_a_page_without_end_is_read_to_its_bound():
    """Not until the time is up: there would be no other probe until then."""
    asked = []

    async def endless(call):
        asked.append(call)
        await call.begin_stream()
        while True:
            await call.send(chunk(b"x" * 2**16))

    async def case():
        async with told(endless) as house:
            await until(lambda: len(asked) > 2)
            assert house.in_flight() == [(0, 0)]

    run(case)
