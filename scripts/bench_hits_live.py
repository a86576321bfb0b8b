"""What routers get of the hits that are there, live, beside each other.

    python scripts/bench_hits_live.py [--peers FOLDER] [--rounds 1]

40 groups with a system prompt of 24,000 characters, 300 sessions of 6 turns, 16 at a time, four
pods (`scripts/cache_pods.py`) with empty caches for each router. "Work" is uncached tokens. How
peers are installed is said in `scripts/rivals.py`; those that are not are left out.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import time
import urllib.request
from collections import defaultdict
from pathlib import Path

import rivals
import uvloop
from bench_router import HEAD, connect

NAMES = [
    "kvbench prefix_cost",
    "sglang-router cache_aware",
    "vllm-router cache_aware",
    "kvbench session",
    "kvbench round_robin",
]
GROUPS, SESSIONS, TURNS = 40, 300, 6
CASES = {  # how the groups' popularity falls, blocks of 16 tokens per pod
    "even, all fits": (0.0, 9_000),
    "Zipf 1.1, all fits": (1.1, 9_000),
    "even, tight": (0.0, 2_200),
    "Zipf 1.1, tight": (1.1, 1_600),
}
WORDS = ["the", "of", "and", "to", "in", "that", "it", "is", "was", "for", "on", "with", "as"]


def prose(chance: random.Random, characters: int) -> str:
    """Return words."""
    return " ".join(chance.choices(WORDS, k=characters // 4))[:characters]


class Traffic:
    """The sessions, the same for every router."""

    def __init__(self, skew: float, seed: int) -> None:
        chance = random.Random(seed)  # noqa: S311 - words
        systems = [f"{group} {prose(chance, 24_000)}" for group in range(GROUPS)]
        weights = [(rank + 1) ** -skew for rank in range(GROUPS)]
        self._waiting = [
            (systems[group], [prose(chance, 400) for _ in range(TURNS)])
            for group in chance.choices(range(GROUPS), weights, k=SESSIONS)
        ]
        self.ttfts: list[float] = []

    async def play(self, port: int, at_once: int) -> None:
        """Play all sessions, so many at a time."""
        askers = await connect(port, at_once)
        self._waiting.reverse()
        await asyncio.gather(*(self._user(asker) for asker in askers))
        for asker in askers:
            asker.transport.abort()

    async def _user(self, asker) -> None:  # noqa: ANN001 - `bench_router.Asker`
        while self._waiting:
            system, questions = self._waiting.pop()
            messages = [{"role": "system", "content": system}]
            for question in questions:
                messages.append({"role": "user", "content": question})
                await self._ask(asker, messages)
                messages.append({"role": "assistant", "content": "word " * 40})

    async def _ask(self, asker, messages: list[dict]) -> None:  # noqa: ANN001 - as above
        document = {"model": "m", "messages": messages, "stream": True, "max_tokens": 2}
        body = json.dumps(document).encode()
        done = asyncio.get_running_loop().create_future()
        asker.done = lambda: done.set_result(None)
        sent = time.perf_counter()
        asker.ask((HEAD % len(body)).encode() + body)
        await done
        self.ttfts.append((asker.first_body - sent) * 1000)


def stats(ports: list[int]) -> list[dict]:
    """Return what the pods counted."""
    urls = [f"http://127.0.0.1:{port}/stats" for port in ports]
    return [json.load(urllib.request.urlopen(url, timeout=5)) for url in urls]  # noqa: S310


def measure(name: str, skew: float, blocks: int, peers: Path, seed: int) -> list[float]:
    """Return hit rate, work max/mean, and TTFT mean and p95 in ms."""
    pods = subprocess.Popen(  # noqa: S603 - our own command line
        [sys.executable, Path(__file__).with_name("cache_pods.py"), "4", str(blocks)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert pods.stdout is not None
    ports = [int(word) for word in pods.stdout.readline().split()]
    router = rivals.start(name, ports, peers)
    if router is None:
        pods.communicate()
        return []
    time.sleep(1.5)  # until it has met its pods
    traffic, before = Traffic(skew, seed), stats(ports)
    try:
        uvloop.run(traffic.play(router.port, 16))
        after = stats(ports)
    finally:
        router.stop()
        pods.communicate()
    prompt, cached = (
        [now[what] - then[what] for now, then in zip(after, before, strict=True)]
        for what in ("prompt_tokens", "cached_tokens")
    )
    work = [tokens - hits for tokens, hits in zip(prompt, cached, strict=True)]
    ttfts = sorted(traffic.ttfts)
    return [
        sum(cached) / sum(prompt),
        max(work) * len(work) / sum(work),
        statistics.fmean(ttfts),
        ttfts[len(ttfts) * 95 // 100],
    ]


def spread(values: tuple[float, ...], form: str) -> str:
    """Return the mean of some values, and the least and the greatest of them."""
    mean = format(statistics.fmean(values), form)
    if len(values) == 1:
        return mean
    return f"{mean} ({min(values):{form}} to {max(values):{form}})"


def main() -> None:
    """Print a table for each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", type=Path, default=Path("peers"), help="folder of environments")
    parser.add_argument("--rounds", type=int, default=1, help="seeds")
    parser.add_argument("--only", nargs="*", default=NAMES, help="routers, e.g. 'kvbench chwbl'")
    parser.add_argument("--cases", nargs="*", default=list(CASES))
    given = parser.parse_args()
    for case in given.cases:
        found: dict[str, list[list[float]]] = defaultdict(list)
        for seed in range(1, given.rounds + 1):
            for name in given.only:
                figures = measure(name, *CASES[case], given.peers, seed)
                if figures:
                    found[name].append(figures)
        print(f"\n{case} (load average {os.getloadavg()[0]:.1f})\n")
        print("| router, policy | hit rate | work max/mean | TTFT mean, ms | TTFT p95, ms |")
        print("|---|---|---|---|---|")
        for name, rounds in found.items():
            cells = map(spread, zip(*rounds, strict=True), (".3f", ".2f", ".0f", ".0f"))
            print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
