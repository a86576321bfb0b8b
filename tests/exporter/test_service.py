"""The exporter beside simulated pods: every metric is seen to move, and bad pods delay nobody."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from types import SimpleNamespace

import pytest
from fakes_pod import make_config, running_pod
from prometheus_client.parser import text_string_to_metric_families
from wire import connected, scene, serving, until

from kvbench.clock import WallClock, utc_seconds
from kvbench.errors import InputError
from kvbench.exporter.gpu import Gpu
from kvbench.exporter.service import Exporter, Settings
from kvbench.metrics import exporter as metrics
from kvbench.pod.publisher import EventsConfig, Publisher

SIZE, BLOCKS = 16, 12
CAPACITY = (BLOCKS - 1) * SIZE
GPU = Gpu(0, 5 * 2**30, 10 * 2**30, 0.25)


class Site(contextlib.AsyncExitStack):
    """Pods and an exporter, all ended in the end."""

    async def pod(self, *, faults=(), replay=True, **config):
        """Start a pod that publishes events; return it, and how `--pod` takes it."""
        endpoints = EventsConfig(
            enable_kv_cache_events=True,
            endpoint="tcp://127.0.0.1:*",
            replay_endpoint="tcp://127.0.0.1:*" if replay else None,
        )
        publisher = Publisher(endpoints, "map", utc_seconds)
        settings = {"num_gpu_blocks": BLOCKS, "block_size": SIZE, "max_model_len": 128} | config
        pod = await self.enter_async_context(
            running_pod(make_config(**settings), publisher=publisher, faults=faults)
        )
        again = f",replay={publisher.replay_endpoint}" if replay else ""
        return pod, f"{pod.url},events={publisher.endpoint}{again}"

    async def exporter(self, *pods, router=None, **settings):
        """Start an exporter that looks every 20 ms, and wait until it has seen its pods."""
        exporter = Exporter(
            pods, router, Settings(**{"every_s": 0.02} | settings), WallClock(), utc_seconds
        )
        self.push_async_callback(exporter.stop)
        await exporter.start("127.0.0.1", 0)
        return exporter


def shown(exporter) -> dict[str, dict[tuple[str, ...], float]]:
    """Return what is exported: by metric, by the values of its labels in their names' order."""
    answers = []
    request = SimpleNamespace(method="GET", path="/metrics")
    exporter.handle(SimpleNamespace(request=request, respond=lambda *said: answers.append(said[1])))
    samples: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(answers[0].decode()):
        for sample in family.samples:
            labels = tuple(v for k, v in sorted(sample.labels.items()))
            samples.setdefault(sample.name, {})[labels] = sample.value
    return samples


async def complete(pod, prompt, max_tokens=1):
    """Have a pod answer a prompt of token ids."""
    body = {"prompt": list(prompt), "max_tokens": max_tokens, "ignore_eos": True}
    answer = await pod.post("/v1/completions", body)
    assert answer.status == 200, answer.body
    return json.loads(answer.body)


async def seen(exporter, requests: int) -> None:
    """Wait until scrapes have seen that many requests end, over all pods."""
    await until(
        lambda: sum(p.totals.get("requests", 0) for p in exporter.fleet.pods.values()) >= requests
    )


def prompt(number: int, tokens: int):
    """Return a prompt that shares nothing with those of other numbers."""
    return [number % 200 + 3] * 2 + [(number * 7 + i) % 300 + 3 for i in range(tokens - 2)]


@scene
async def test_what_a_cache_is_made_of_and_why_it_was_filled():
    """Two pods of eleven blocks; each number can be worked out by hand."""
    async with Site() as site:
        a, a_flag = await site.pod()
        b, b_flag = await site.pod()
        exporter = await site.exporter(a_flag, b_flag)
        names = [url.removeprefix("http://") for url in (a.url, b.url)]
        await until(lambda: all(pod.reading for pod in exporter.fleet.pods.values()))
        first = prompt(1, 64)
        await complete(a, first)  # four blocks, cold
        # Heard before the other pod's: which comes first decides who was cold.
        resident = metrics.RESIDENT_TOKENS.name
        await until(lambda: shown(exporter).get(resident, {}).get((names[0],)) == 4 * SIZE)
        await complete(b, first)  # the same four: another pod has them
        await complete(a, [*first, *prompt(2, 33)])  # hits four, stores two
        await complete(a, [*first, *prompt(3, 33)])  # and branches there
        await seen(exporter, 4)
        now = shown(exporter)

        def of(metric, pod, *labels):
            return now[metric.name][(*labels, names[pod])]

        assert of(metrics.CAPACITY_TOKENS, 0) == CAPACITY
        assert of(metrics.RESIDENT_TOKENS, 0) == 8 * SIZE
        assert of(metrics.REFERENCED_TOKENS, 0) == 0.0
        assert of(metrics.EVICTABLE_TOKENS, 0) == 8 * SIZE
        assert of(metrics.EMPTY_TOKENS, 0) == 3 * SIZE
        assert of(metrics.HEADROOM_TOKENS, 0) == CAPACITY
        assert of(metrics.STORED_TOKENS, 0, "cold") == 8 * SIZE
        assert of(metrics.STORED_TOKENS, 1, "elsewhere") == 4 * SIZE
        assert of(metrics.QUERIED_TOKENS, 0) == 64 + 97 + 97
        assert of(metrics.HIT_TOKENS, 0) == 128
        assert of(metrics.ATTAINABLE_TOKENS, 0) == 128
        assert of(metrics.ATTAINABLE_TOKENS, 1) == 64
        assert now[metrics.HELD_TOKENS.name][("2",)] == 4 * SIZE
        assert now[metrics.UNIQUE_TOKENS.name][()] == 8 * SIZE
        assert now[metrics.DUPLICATE_TOKENS.name][()] == 4 * SIZE
        assert now[metrics.MAX_OVER_MEAN.name][("requests",)] == 1.5
        assert now[metrics.JAIN.name][("requests",)] == pytest.approx(16 / (2 * 10))
        assert now[metrics.MAX_OVER_MEAN.name][("uncached_tokens",)] == pytest.approx(
            2 * 130 / (130 + 64)
        )
        ended = now[f"{metrics.CONTEXT_RATIO.name}_count"]
        assert ended[(names[0],)] == 3.0
        assert now[f"{metrics.CONTEXT_RATIO.name}_sum"][(names[0],)] == pytest.approx(
            (65 + 98 + 98) / 128
        )


@scene
async def test_evictions_returns_resets_and_preemptions_are_counted():
    """Prompts of six blocks in a pool of eleven: the first is gone when the third has come."""
    async with Site() as site:
        pod, flag = await site.pod()
        exporter = await site.exporter(flag)
        name = pod.url.removeprefix("http://")
        await until(lambda: all(p.reading for p in exporter.fleet.pods.values()))
        before = shown(exporter)
        for number in (1, 2, 3, 1):
            await complete(pod, prompt(number, 97))
        await pod.post("/reset_prefix_cache", {})
        await complete(pod, prompt(1, 97))
        await asyncio.gather(*(complete(pod, prompt(n, 80), 40) for n in (8, 9)))
        await seen(exporter, 7)
        now = shown(exporter)

        stored = {k[0]: v for k, v in now[metrics.STORED_TOKENS.name].items()}
        assert stored["evicted"] >= 6 * SIZE
        assert stored["reset"] >= 6 * SIZE
        assert now[metrics.EVICTED_TOKENS.name][(name,)] >= 7 * SIZE
        assert now[f"{metrics.BLOCK_LIFETIME.name}_count"][(name,)] >= 7
        assert now[f"{metrics.REUSE_GAP.name}_count"][(name,)] >= 1
        assert before[metrics.COLD_START.name][(name, "reset")] == 0.0
        assert now[metrics.COLD_START.name][(name, "reset")] == 1.0
        assert now[metrics.PREEMPTIONS.name][(name,)] >= 1.0
        assert now[metrics.REQUESTS.name][(name,)] == 7.0
        assert now[metrics.HEADROOM_SEQUENCES.name][("mean", name)] == 1.0
        assert now[metrics.REMEMBERED.name][()] > 0
        assert now[metrics.EVENTS_BATCHES.name][(name,)] > 5
        assert now[metrics.AGE.name][(name,)] > before[metrics.AGE.name][(name,)]


@scene
async def test_every_metric_of_the_catalogue_is_shown_once_its_cause_is_there():
    """None is only declared; what this pod does not say (bytes) is shown by another's words."""
    async with Site() as site:
        pod, flag = await site.pod()
        bytes_known = (
            b'vllm:num_requests_running{engine="0",model_name="m"} 1.0\n'
            b'vllm:cache_config_info{block_size="16",num_gpu_blocks="10",'
            b'kv_cache_memory_bytes="4096"} 1.0\n'
        )
        other = await site.enter_async_context(
            serving(lambda e: e.respond(200, bytes_known, "text/plain"))
        )
        broken = await site.enter_async_context(serving(lambda e: e.respond(500, b"")))
        exporter = await site.exporter(flag, other.url, broken.url)
        await complete(pod, prompt(1, 64))
        await complete(pod, [*prompt(1, 64), *prompt(2, 33)])
        await complete(pod, [*prompt(1, 64), *prompt(3, 97)[:33]])
        await complete(pod, prompt(4, 97))
        await seen(exporter, 4)
        await until(lambda: len(exporter.fleet.pods) == 3)
        await until(lambda: (exporter.fleet.meters.failures._values or {}) != {})
        now = shown(exporter)

        families = {
            name.removesuffix(suffix) for name in now for suffix in ("", "_bucket", "_count")
        }
        silent = {m.name for m in metrics.METRICS if m.name not in families}
        # An exposition is asked for without GPUs in this test's machine.
        gpus = {m.name for m in metrics.METRICS if m.name.startswith("kvbench_gpu")}
        assert silent - gpus == set()


@scene
async def test_gpus_are_shown_by_their_number():
    """In bytes and shares; where there is none, there is no series."""
    async with Site() as site:
        exporter = await site.exporter("http://127.0.0.1:1")
        exporter.fleet.show(0.0, [GPU])
        levels = exporter.fleet.meters._levels

        assert levels[metrics.GPU_USED_BYTES]._values == {("0",): 5 * 2**30}
        assert levels[metrics.GPU_BUSY]._values == {("0",): 0.25}
        exporter.fleet.show(0.0, [])
        assert levels[metrics.GPU_USED_BYTES]._values == {}


@scene
async def test_a_pod_at_work_has_blocks_in_use_and_is_stalled_while_no_token_comes():
    """A step that takes long: what is referenced is not evictable, and time passes."""
    async with Site() as site:
        pod, flag = await site.pod(step_s=0.3)
        exporter = await site.exporter(flag)
        name = pod.url.removeprefix("http://")
        watched = exporter.fleet.pods
        asked = asyncio.ensure_future(complete(pod, prompt(1, 64), 3))
        await until(lambda: watched[name].busy_since is not None)
        await until(lambda: WallClock().now() - watched[name].busy_since > 0.05)
        now = shown(exporter)

        assert now[metrics.STALLED.name][(name,)] > 0.05
        assert now[metrics.REFERENCED_TOKENS.name][(name,)] >= 4 * SIZE
        assert now[metrics.EVICTABLE_TOKENS.name][(name,)] == 0.0
        assert now[metrics.HEADROOM_TOKENS.name][(name,)] <= CAPACITY - 4 * SIZE
        await asked
        await until(lambda: watched[name].busy_since is None)
        assert shown(exporter)[metrics.STALLED.name][(name,)] == 0.0


@scene
async def test_lost_events_are_counted_and_what_they_would_have_said_is_absent():
    """Without a replay a loss is for good: degraded, and no count of blocks."""
    async with Site() as site:
        pod, flag = await site.pod(faults=("drop-events:rate=0.5",), replay=False)
        exporter = await site.exporter(flag)
        name = pod.url.removeprefix("http://")
        await until(lambda: exporter.fleet.pods[name].reading is not None)
        trust = exporter.fleet.ledger.trust
        while trust(name).level != "degraded":
            for number in range(1, 5):
                await complete(pod, prompt(number, 33))
        now = shown(exporter)

        assert now[metrics.EVENTS_LOST.name][(name,)] >= 1.0
        assert now[metrics.EVENTS_GAPS.name][(name,)] >= 1.0
        assert now[metrics.EVENTS_TRUST.name][("degraded", name)] == 1.0
        assert metrics.RESIDENT_TOKENS.name not in now
        assert metrics.CAPACITY_TOKENS.name in now


@scene
async def test_pods_that_are_slow_or_talk_nonsense_delay_no_other():
    """One never answers, one is a web page, one is gone; the fourth is looked at all the time."""
    async with Site() as site:
        pod, flag = await site.pod()
        silent = await site.enter_async_context(serving(lambda _exchange: None))
        page = await site.enter_async_context(
            serving(lambda e: e.respond(200, b"<html></html>", "text/html"))
        )
        urls = [silent.url, page.url, "http://127.0.0.1:1"]
        exporter = await site.exporter(flag, *urls, timeout_s=0.4)
        name = pod.url.removeprefix("http://")
        looks = 0
        failures = exporter.fleet.meters.failures._values
        looked = exporter.fleet.looked

        def counted(which, *rest):
            nonlocal looks
            looks += which == name
            looked(which, *rest)

        exporter.fleet.looked = counted
        await until(lambda: (silent.url.removeprefix("http://"), "timeout") in failures)

        assert looks >= 8  # every 20 ms, while one look at the silent one took 400 ms
        assert {why for _, why in failures} == {"timeout", "nonsense", "refused"}
        now = shown(exporter)[metrics.UP.name]
        assert sorted(now.values()) == [0.0, 0.0, 0.0, 1.0]


@scene
async def test_trouble_with_a_pod_is_logged_once_and_once_that_it_is_over(caplog):
    """However often it is looked at."""
    caplog.set_level(logging.INFO, "kvbench")
    pages = [b"<html></html>"] * 3 + [b"# TYPE vllm:num_requests_running gauge\n"] * 100
    async with Site() as site:
        web = await site.enter_async_context(
            serving(lambda e: e.respond(200, pages.pop(0) if e.request.path == "/metrics" else b""))
        )
        exporter = await site.exporter(web.url)
        name = web.url.removeprefix("http://")
        await until(lambda: exporter.fleet.pods[name].reading is not None)

        assert [(record.levelname, record.getMessage()) for record in caplog.records][:3] == [
            ("INFO", f"{name} joined"),
            ("WARNING", f"{name}: /metrics cannot be read: not a single metric of vLLM or SGLang"),
            ("INFO", f"{name}: /metrics can be read again"),
        ]
        assert exporter.totals().endswith(", in vain: 3")


@scene
async def test_a_routers_pods_are_taken_in_and_let_go():
    """As its list says, with the key that it asks for; nothing is left of one that is gone."""
    listed: list[dict[str, str]] = []

    def listing(exchange):
        if exchange.request.head.named.get(b"authorization") != b"Bearer k1":
            exchange.respond(401, b"{}")
            return
        exchange.respond(200, json.dumps({"pods": listed}).encode())

    async with Site() as site:
        router = await site.enter_async_context(serving(listing))
        a, a_flag = await site.pod()
        b, _ = await site.pod()
        listed += [{"name": "a", "url": a.url, "pod": a_flag}, {"name": "b", "url": b.url}]
        exporter = await site.exporter(router=router.url, router_every_s=0.05, key="k1")
        name_a, name_b = (url.removeprefix("http://") for url in (a.url, b.url))
        await until(lambda: {name_a, name_b} <= set(exporter.fleet.pods))
        await until(lambda: all(pod.reading for pod in exporter.fleet.pods.values()))
        await complete(a, prompt(1, 64))
        await complete(b, prompt(1, 64))
        await seen(exporter, 2)

        assert shown(exporter)[metrics.EVENTS_TRUST.name][("exact", name_a)] == 1.0
        assert shown(exporter)[metrics.EVENTS_TRUST.name][("off", name_b)] == 1.0
        listed.pop(0)
        await until(lambda: set(exporter.fleet.pods) == {name_b})
        assert [k for values in shown(exporter).values() for k in values if name_a in k] == []


@scene
async def test_metrics_health_and_nothing_else_is_served():
    """Over HTTP, as Prometheus asks for it."""
    async with Site() as site:
        exporter = await site.exporter("http://127.0.0.1:1")
        port = exporter._server.port
        statuses = []
        for path in ("/metrics", "/health", "/v1/models"):
            async with connected(port) as client:
                client.get(path)
                statuses.append((await client.answer()).status)

        assert statuses == [200, 200, 404]


@scene
async def test_pods_are_listed_as_prometheus_takes_them_in():
    """Named as everywhere, and scraped where the exporter looks itself."""
    async with Site() as site:
        exporter = await site.exporter("http://127.0.0.1:1", "https://127.0.0.1:2/behind/")
        async with connected(exporter._server.port) as client:
            client.get("/targets")
            answer = await client.answer()

    assert json.loads(answer.body) == [
        {
            "targets": ["127.0.0.1:1"],
            "labels": {"__scheme__": "http", "__metrics_path__": "/metrics"},
        },
        {
            "targets": ["127.0.0.1:2"],
            "labels": {"__scheme__": "https", "__metrics_path__": "/behind/metrics"},
        },
    ]


@pytest.mark.parametrize(
    ("pods", "message"),
    [
        pytest.param([], "expected at least one pod", id="nothing to look at"),
        pytest.param(["http://a:1", "http://a:1/"], "a:1 is given twice", id="twice"),
        pytest.param(["a:1"], "expected a URL", id="no URL"),
        pytest.param(["http://a:1,event=tcp://a:2"], "expected one of", id="unknown key"),
    ],
)
def test_pods_that_make_no_sense_are_refused(pods, message):
    """Before anything is begun."""
    with pytest.raises(InputError, match=message):
        Exporter(pods, None, Settings(), WallClock(), utc_seconds)


@scene
async def test_a_pods_window_is_asked_for_with_the_key_of_its_api():
    """Without one it is what the metrics say, to a block."""
    said = (
        b'vllm:num_requests_running{engine="0",model_name="m"} 1.0\n'
        b'vllm:cache_config_info{block_size="16",num_gpu_blocks="10",kv_cache_size_tokens="160",'
        b'kv_cache_max_concurrency="2.0"} 1.0\n'
    )

    def answer(exchange):
        if exchange.request.path == "/metrics":
            exchange.respond(200, said, "text/plain")
        elif exchange.request.header("authorization") == "Bearer k1":
            exchange.respond(200, b'{"data":[{"max_model_len":77}]}')
        else:
            exchange.respond(401, b"{}")

    async with Site() as site:
        pod = await site.enter_async_context(serving(answer))
        closed = await site.exporter(pod.url)
        opened = await site.exporter(pod.url, key="k1")
        name = pod.url.removeprefix("http://")
        await until(lambda: opened.fleet.pods[name].window == 77)
        await until(lambda: closed.fleet.pods[name].window == 80)

        assert "k1" not in repr(opened._settings)


@scene
async def test_a_fault_of_our_own_is_told_and_costs_one_pod(caplog):
    """The others are looked at all the same."""
    async with Site() as site:
        pod, flag = await site.pod()
        exporter = await site.exporter(flag, "http://127.0.0.1:1")
        looked = exporter.fleet.looked

        def broken(name, *rest):
            if name == "127.0.0.1:1":
                raise RuntimeError("no such thing")
            looked(name, *rest)

        exporter.fleet.looked = broken
        await until(lambda: "127.0.0.1:1 is looked at no more" in caplog.text)
        exporter.fleet.pods[pod.url.removeprefix("http://")].reading = None
        await until(
            lambda: exporter.fleet.pods[pod.url.removeprefix("http://")].reading is not None
        )
