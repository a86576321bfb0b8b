"""Every query of every panel, asked of a real Prometheus that scrapes a running stack."""

from __future__ import annotations

import asyncio
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count

import pytest
from fleets import SmallFleet, host, load
from monitoring import Watchers, free_port, until

from kvbench.alerts.settings import Settings, Windows
from kvbench.dashboards.boards import boards
from kvbench.dashboards.panel import NEEDS
from kvbench.dashboards.picture import render
from kvbench.dashboards.replay import Prometheus, Span, replay

pytestmark = pytest.mark.stack

SETTINGS = Settings(windows=Windows().scaled(1 / 20))
BOARDS = boards(SETTINGS)
TRAFFIC_S = 40

WORKLOAD = """
name: proof
description: Short conversations over shared prefixes, for longer than the proof takes.
api: chat
seed: 1
prefixes: [{name: p, count: 6, tokens: 400}]
sessions: {count: 500, turns: 3, user_tokens: 60, answer_tokens: 40, think: 1}
arrival: {poisson: {rate: 2}}
"""


def asked(url, seconds, running):
    """Return every board with the answers of its panels over the last seconds."""
    end = time.time()  # noqa: TID251 - Prometheus lives in calendar time
    span = Span(end - seconds, end, 1.0, "10s")
    return [(board, replay(board, Prometheus(url), span, running), span) for board in BOARDS]


def faults(answered):
    """Return what is wrong, panel by panel."""
    return {
        f"{board.title}: {answer.panel.title}": answer.faults
        for board, answers, _ in answered
        for answer in answers
        if answer.faults
    }


async def watch(folder, watchers, url):
    """Return the answers of an idle fleet, and of one under a load run, all parts scraped."""
    async with SmallFleet(folder / "f", blocks=600) as fleet:
        await fleet.start()
        port = free_port()
        watchers.scrape("vllm", {None: [host(pod) for pod in fleet.pods]})
        watchers.scrape("kvbench-exporter", {None: [host(fleet.exporter)]})
        watchers.scrape("kvbench-router", {None: [host(fleet.router)]})
        watchers.scrape("kvbench-load", {None: [f"127.0.0.1:{port}"]})
        await asyncio.sleep(8)
        idle = await asyncio.to_thread(asked, url, 6, [])
        with load(folder, WORKLOAD, fleet.router, port):
            await asyncio.sleep(TRAFFIC_S)
            parts = ["pods", "exporter", "router", "load"]
            busy = await asyncio.to_thread(asked, url, TRAFFIC_S - 10, parts)
    return idle, busy


@pytest.mark.timeout(180)
def test_every_panel_answers_with_numbers_under_load_and_with_silence_when_idle(tmp_path_factory):
    """No error, no NaN, nothing missing; and no curve of traffic where there is none."""
    folder = tmp_path_factory.mktemp("live")
    short = tmp_path_factory.mktemp("s")  # paths of sockets are short
    with Watchers(folder / "watch", SETTINGS) as watchers:
        url = watchers.start_prometheus()
        idle, busy = asyncio.run(watch(short, watchers, url))

    assert faults(idle) == {}
    assert faults(busy) == {}
    silent = {a.panel.title: a.empty for _, answers, _ in idle for a in answers}
    assert silent["Time to first token"]
    assert silent["Hit rate and its ceiling"]
    assert silent["Within objective"]
    for board, answers, span in busy:
        render(board, answers, span, folder / f"{board.title}.png")
        assert 20_000 < (folder / f"{board.title}.png").stat().st_size < 200_000


SGLANG = """
# TYPE sglang_num_running_reqs gauge
sglang_num_running_reqs{{model_name="m",tp_rank="0"}} 2
# TYPE sglang_num_queue_reqs gauge
sglang_num_queue_reqs{{model_name="m",tp_rank="0"}} 0
# TYPE sglang_prompt_tokens counter
sglang_prompt_tokens_total{{model_name="m",is_streaming="true"}} {asked}
# TYPE sglang_cached_tokens counter
sglang_cached_tokens_total{{model_name="m",cache_source="device"}} {found}
"""
"""As Prometheus 2 gets it from SGLang: its client library makes underscores of colons."""

DCGM = """
DCGM_FI_DEV_FB_USED{{gpu="0",Hostname="node"}} 72000
DCGM_FI_DEV_FB_FREE{{gpu="0",Hostname="node"}} 8000
DCGM_FI_DEV_GPU_UTIL{{gpu="0",Hostname="node"}} 98
DCGM_FI_PROF_DRAM_ACTIVE{{gpu="0",Hostname="node"}} 0.6
"""
"""As dcgm-exporter tells it of a GPU."""


@pytest.mark.timeout(60)
def test_underscored_names_of_sglang_and_those_of_dcgm_are_drawn(tmp_path):
    """The first by the relabelling of alerts/prometheus.yml; the hit rate is of tokens."""
    scrapes = count(1)

    class Engine(BaseHTTPRequestHandler):
        """Finds three quarters of what it is asked for."""

        def do_GET(self):
            """Answer a scrape."""
            number = next(scrapes)
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            text = (SGLANG + DCGM).format(asked=number * 1000, found=number * 750)
            self.wfile.write(text.encode())

        def log_message(self, *_arguments):
            """Say nothing."""

    with (
        ThreadingHTTPServer(("127.0.0.1", 0), Engine) as engine,
        Watchers(tmp_path / "watch", SETTINGS) as watchers,
    ):
        threading.Thread(target=engine.serve_forever, daemon=True).start()
        url = watchers.start_prometheus()
        watchers.scrape("vllm", {None: [f"127.0.0.1:{engine.server_port}"]})

        def drawn():
            """Return the newest values of some panels, once there is a hit rate."""
            got = {
                (board.title, answer.panel.title): [
                    one.latest for series in answer.series for one in series
                ]
                for board, answers, _ in asked(url, 8, [])
                for answer in answers
            }
            return got["Fleet", "Hit rate"] and got

        got = until(drawn, 30, "a hit rate")
        engine.shutdown()

    assert got["Fleet", "Hit rate"] == [pytest.approx(0.75)]
    assert got["Memory and context", "GPU memory taken"] == [pytest.approx(0.9)]
    assert got["Memory and context", "GPU busy"] == [pytest.approx(0.98), pytest.approx(0.6)]


async def plain(folder, watchers, url):
    """Return the answers of two pods alone, without exporter, router and rules."""
    async with SmallFleet(folder / "p") as fleet:
        await fleet.start()
        watchers.scrape("vllm", {None: [host(pod) for pod in fleet.pods]})
        traffic = asyncio.ensure_future(fleet.repeat(4))
        await asyncio.sleep(15)
        traffic.cancel()
        return await asyncio.to_thread(asked, url, 8, ["pods"])


@pytest.mark.timeout(120)
def test_boards_work_with_plain_pods_alone(tmp_path_factory):
    """What is empty needs a part of ours and says so; everything else has data."""
    folder = tmp_path_factory.mktemp("plain")
    with Watchers(folder / "watch", SETTINGS) as watchers:
        url = watchers.start_prometheus()
        answered = asyncio.run(plain(tmp_path_factory.mktemp("s"), watchers, url))

    assert faults(answered) == {}
    empty = [a.panel for _, answers, _ in answered for a in answers if a.empty]
    assert len(empty) > 30
    assert all(panel.quiet or panel.text.endswith(NEEDS[panel.needs] or ".") for panel in empty)
    assert {panel.needs for panel in empty} == {"exporter", "router", "load", "pods"}
