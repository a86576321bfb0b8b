"""Routers that have each other, or themselves, as pods."""

from __future__ import annotations

import contextlib

from router.fakes import CHAT, Client, House, ask, chat, fine, run, until

LEADS_BACK = "is this router itself, or leads back to it: take it out"


def have(house: House, pod: str) -> None:
    """Have a house's router take a pod in."""
    house.router.sources.roster.add(pod)
    house.router.gather_pods()


def troubles(house: House) -> list[str | None]:
    """Return what is wrong with each pod of a house."""
    return [pod.trouble for pod in house.router.fleet.membership.pods.values()]


def test_a_router_among_its_own_pods_is_found_by_its_first_probe():
    """It is down, says why, and gets no requests."""

    async def case():
        async with House(probe_every_s=0.01, named=[], admin=True) as house:
            have(house, house.url)
            await until(lambda: troubles(house) == [LEADS_BACK])

            reply = await ask(house.url, "POST", CHAT, chat("hi"))
            assert reply.status == 503
            assert LEADS_BACK in reply.json()["error"]["message"]
            assert (await ask(house.url, "GET", "/health")).status == 503

    run(case)


def test_a_request_that_comes_back_costs_one_round_and_is_answered_by_another_pod():
    """Also where nobody probes."""

    async def case():
        async with House(fine, policy="round_robin") as house:
            have(house, house.url)
            replies = [await ask(house.url, "POST", CHAT, chat("hi")) for _ in range(20)]

            assert {(r.status, r.headers["x-kvbench-pod"]) for r in replies} == {
                (200, house.pods[0].name)
            }
            assert await house.metric("kvbench_router_refusals_total", status="508") == 3
            assert len(house.pods[0].calls) == 20

    run(case)


def test_a_request_that_only_leads_back_is_508_and_says_the_way_out():
    """The error is the router's that has seen it twice."""

    async def case():
        async with House(admin=True, named=[]) as house:
            have(house, house.url)
            reply = await ask(house.url, "POST", "/v1/embeddings", b"{}")

            assert reply.status == 508
            error = reply.json()["error"]
            assert (error["type"], error["code"]) == ("LoopDetectedError", 508)
            assert "DELETE it on the admin port" in error["message"]
            assert await house.metric("kvbench_router_refusals_total", status="508") == 1

    run(case)


def test_two_routers_that_have_each_other_go_on_answering():
    """Each request goes round once at most; a pod that one of them has answers it."""

    async def case():
        async with (
            House(fine, name="one", policy="round_robin") as one,
            House(name="two", named=[one.url]) as two,
        ):
            have(one, two.url)
            for house in (one, two):
                replies = [await ask(house.url, "POST", CHAT, chat("hi")) for _ in range(10)]
                assert {reply.status for reply in replies} == {200}
            assert len(one.pods[0].calls) == 20
            assert await one.metric("kvbench_router_refusals_total", status="508") == 3
            assert troubles(two) == [None]  # it had to refuse what it had sent itself

    run(case)


def test_a_chain_of_routers_tells_the_pod_whose_hands_a_request_was_in():
    """In order, behind what the client says itself (RFC 9110 §7.6.3)."""

    async def case():
        async with (
            House(fine, name="near", probe_every_s=0.01) as near,
            House(name="far", named=[near.url], probe_every_s=0.01) as far,
        ):
            client = await Client.to(far.url)
            reply = await client.ask("POST", CHAT, chat("hi"), "via: 1.1 cdn, 1.0 nearby")
            client.close()

            assert reply.status == 200
            (call,) = [call for call in near.pods[0].calls if call.target == CHAT]
            assert [value for name, value in call.headers if name == "via"] == [
                "1.1 cdn, 1.0 nearby", "1.1 far", "1.1 near",
            ]  # fmt: skip
            assert troubles(far) == [None]

    run(case)


def test_many_routers_that_have_only_each_other_soon_give_up():
    """As behind a DNS name that is the routers' own; else each asks all others in every order."""

    async def case():
        async with contextlib.AsyncExitStack() as stack:
            houses = [
                await stack.enter_async_context(House(name=f"kvbench-{n}", admin=True, named=[]))
                for n in range(6)
            ]
            for house in houses:
                for other in houses:
                    have(house, other.url)
            reply = await ask(houses[0].url, "POST", CHAT, chat("hi"))

            assert reply.status == 508
            passed_on = sum(
                pod.requests
                for house in houses
                for pod in house.router.fleet.membership.pods.values()
            )
            assert passed_on <= 4 * (1 + 2 * (1 + 2))

    run(case)
