"""What has gone wrong in other routers in production, where no other test here would see it."""

from __future__ import annotations

import asyncio
import json

import pytest
from router.fakes import CHAT, Client, House, ask, chat, fine, run, until

POLICIES = ["prefix_cost", "prefix_estimate", "cache_aware", "least_load"]


async def placed(house: House, text: str) -> tuple[str, int]:
    """Send a prompt; return who answered, and how many cached tokens were predicted."""
    reply = await ask(house.url, "POST", CHAT, chat(text))
    return reply.headers["x-kvbench-pod"], int(reply.headers["x-kvbench-predicted-tokens"])


def calls(house: House) -> int:
    """Return how many requests have come to the pods."""
    return sum(len(pod.calls) for pod in house.pods)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_pod_that_gets_nothing_done_draws_no_new_prompts(policy):
    """It knows the fewest prefixes, and so where the smallest tree wins it would get them all."""

    async def case():
        async def stuck(call):
            await call.gone()

        async with House(stuck, fine, fine, policy=policy) as house:
            slow = house.pods[0]
            clients = []
            while not slow.calls:  # somebody has to be the first there
                clients.append(await Client.to(house.url))
                clients[-1].send("POST", CHAT, chat(f"first {len(clients)}"))
                await until(lambda: calls(house) == len(clients))
            for number in range(40):
                pod, _ = await placed(house, f"{number} " * 300)
                assert pod != slow.name
            for client in clients:
                client.vanish()

    run(case)


@pytest.mark.parametrize("policy", POLICIES[:3])
def test_a_pod_that_was_removed_and_added_again_is_believed_to_hold_nothing(policy):
    """It may be another by now; and a name that is gone must not be found by its prefix."""

    async def case():
        async with House(fine, fine, policy=policy, admin=True) as house:
            text = "the river " * 500
            home, _ = await placed(house, text)
            assert await placed(house, text) == (home, pytest.approx(1250, rel=0.2))
            url = json.dumps({"url": f"http://{home}"}).encode()
            await ask(house.admin, "DELETE", f"/pods/{home}")
            other, predicted = await placed(house, text)
            assert (other != home, predicted) == (True, 0)

            await ask(house.admin, "POST", "/pods", url)
            await ask(house.admin, "DELETE", f"/pods/{other}")
            assert await placed(house, text) == (home, 0)

    run(case)


def test_a_pod_that_comes_back_with_nothing_to_do_does_not_get_everything():
    """Requests that clients left, or that died with it, have left no load on the others."""

    async def case():
        hold = asyncio.Event()

        async def holds(call):
            await hold.wait()
            await call.answer()

        async with House(holds, holds, holds, policy="least_load") as house:
            for _ in range(30):
                client = await Client.to(house.url)
                arrived = calls(house)
                client.send("POST", CHAT, chat("hi"))
                await until(lambda arrived=arrived: calls(house) > arrived)
                client.vanish()
                await house.quiet()
            pod = house.pods[0]
            await pod.stop()
            await pod.start()
            before, arrived = [len(one.calls) for one in house.pods], calls(house)
            asked = [asyncio.ensure_future(placed(house, f"{n}")) for n in range(12)]
            await until(lambda: calls(house) == arrived + 12)
            hold.set()
            await asyncio.gather(*asked)
            got = [len(one.calls) - had for one, had in zip(house.pods, before, strict=True)]
            assert got == [4, 4, 4]

    run(case)
