"""The router's own requests to a pod."""

from __future__ import annotations

import asyncio

from router.fakes import FakePod, fine, run

from kvbench.http.address import parse_address
from kvbench.router.fetch import fetch
from kvbench.router.upstream import Pool


def test_a_probes_connection_serves_nobody_else():
    """It is closed when the probe has ended: a client's request on it would never be answered."""

    async def case():
        pod = await FakePod(fine).start()
        address = parse_address(pod.url)
        pool = Pool(address)
        for path in ("/health", "/v1/models"):
            answer = await fetch(pool, address, "GET", path, 1.0)
            assert (answer.status, answer.trouble) == (200, None)
            assert pool.idle() is None
        pool.close()
        await pod.stop()

    run(case)


def test_a_name_that_is_not_resolved_in_time_is_no_pod_that_is_slow():
    """The one is the name server's fault, the other the pod's."""

    async def case():
        never = asyncio.Event()

        async def hang(_host, _port):
            await never.wait()

        address = parse_address("http://pod.svc:8000")
        pool = Pool(address, resolve=hang)
        for _ in range(2):
            answer = await fetch(pool, address, "GET", "/health", 0.01)
            assert answer.trouble == "its name could not be resolved in time"

    run(case)


def test_what_nobody_answers_is_told_in_words():
    """Refused is not the same as slow."""

    async def case():
        async def silent(call):
            await call.gone()

        pod = await FakePod(silent).start()
        address = parse_address(pod.url)
        pool = Pool(address)
        slow = await fetch(pool, address, "GET", "/x", 0.02)
        await pod.stop()
        refused = await fetch(pool, address, "GET", "/x", 1.0)
        assert (slow.status, slow.trouble, slow.refused) == (0, "did not answer in time", False)
        assert (refused.trouble, refused.refused) == ("connection refused", True)

    run(case)
