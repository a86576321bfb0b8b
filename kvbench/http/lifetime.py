"""How long a serving process lives: until it is told to stop, by a signal or by its parent's end.

Rules: SIGINT and SIGTERM both ask for a graceful end, once; a second one ends the process as usual.
A child that is to exit with its parent holds the read end of a pipe as its standard input: the
parent's end, however it comes, is end-of-file there.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading


async def told_to_stop(*, with_parent: bool) -> None:
    """Return when SIGINT or SIGTERM arrives, or standard input ends if `with_parent`."""
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, told.set)
    if with_parent:
        threading.Thread(target=_watch_stdin, args=(loop, told), daemon=True).start()
    await told.wait()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.remove_signal_handler(number)


def _watch_stdin(loop: asyncio.AbstractEventLoop, told: asyncio.Event) -> None:
    """Read until end-of-file in a thread: not everything that stdin may be can be polled."""
    with contextlib.suppress(OSError):
        while os.read(0, 2**16):
            pass
    with contextlib.suppress(RuntimeError):  # the loop has closed meanwhile
        loop.call_soon_threadsafe(told.set)
