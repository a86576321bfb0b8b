"""What pods are asked when they are met."""

from __future__ import annotations

import json

from fakes_pod import make_config, running_pod
from router.fakes import House, ask, fine, run, until

from kvbench.clock import WallClock
from kvbench.router.service import Router, Settings

CONFIG = 'vllm:cache_config_info{engine="%d",block_size="16",num_gpu_blocks="%d"} 1.0\n'


def test_a_pod_that_says_how_large_its_cache_is_need_not_teach_it():
    """Of ten blocks of 32 tokens: three prompts of four, with a block for each rest and answer.

    What is said is believed to the piece of 64: of the first prompt no more than a half is left.
    """

    async def case():
        pod = make_config(num_gpu_blocks=11, max_model_len=200)
        async with running_pod(pod) as one, running_pod(pod) as other:
            settings = Settings(policy="prefix_cost", probe_every_s=0.005)
            router = Router([one.url, other.url], settings, WallClock())
            url = await router.start("127.0.0.1", 0)
            sizes = router.fleet.policies.sizes
            try:
                await until(lambda: len(sizes) == 2)
                assert set(sizes.values()) == {320}
                router.fleet.remove(other.url.removeprefix("http://"))
                replies = [await asked(url, first) for first in (1, 2, 3, 2, 1)]
            finally:
                await router.stop(0.0)
        assert replies == [(0, 0), (0, 0), (0, 0), (128, 128), (64, 32)]

    run(case)


async def asked(url: str, first: int) -> tuple[int, int]:
    """Send 130 token ids, that one first; return predicted and delivered cached tokens."""
    ids = [first, *range(100, 229)]
    body = json.dumps({"model": "tiny", "prompt": ids, "max_tokens": 1}).encode()
    reply = await ask(url, "POST", "/v1/completions", body, "content-type: application/json")
    usage = reply.json()["usage"]
    delivered = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    return int(reply.headers["x-kvbench-predicted-tokens"]), delivered


def test_the_size_is_what_a_pod_says_last_and_gone_with_the_pod():
    """It may come back with another cache, with several, and it may leave."""
    page = ""

    async def metrics(call):
        await call.answer(page.encode())

    async def case():
        nonlocal page
        async with House(fine, probe_every_s=0.005) as house:
            pod, fleet = house.pods[0], house.router.fleet
            pod.metrics, pod.models = metrics, ["m"]
            one = {pod.name: 160}
            several = CONFIG % (0, 11) + CONFIG % (1, 11)
            told = [(CONFIG % (0, 11), one), (CONFIG % (0, 21), {pod.name: 320}), (several, {})]
            for text, sizes in [*told, told[0]]:
                pod.healthy = False
                await until(lambda: fleet.membership.pods[pod.name].down)
                page, pod.healthy = text, True
                await until(lambda sizes=sizes: fleet.policies.sizes == sizes)
            fleet.remove(pod.name)
            assert fleet.policies.sizes == {}

    run(case)
