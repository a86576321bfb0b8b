"""When a serving process ends. Its parent's end is tested where a process has one: tests/cli."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from kvbench.http.lifetime import told_to_stop


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_asks_for_an_end_and_is_then_given_back(number):
    """A second one would end the process as usual."""
    before = signal.getsignal(number)

    async def case():
        waiting = asyncio.ensure_future(told_to_stop(with_parent=False))
        await asyncio.sleep(0)
        os.kill(os.getpid(), number)
        async with asyncio.timeout(5):
            await waiting

    asyncio.run(case())

    assert signal.getsignal(number) in {before, signal.SIG_DFL, signal.default_int_handler}
