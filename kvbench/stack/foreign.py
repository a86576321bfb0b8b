"""Somebody else's server as a child like our own: ready when it says so, ended with its parent.

    python -m kvbench.stack.foreign http://127.0.0.1:8001 /health vllm serve MODEL …

vLLM, Prometheus and Alertmanager print no `ready` line and outlive whoever started them. This
stands between: it prints `ready URL` once a GET of the path answers with 200, and ends the server,
and whatever that has started, when it is told to stop or its standard input ends. What the server
prints goes to standard error. A server that ends by itself takes this with it, and lends it its
exit code.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import urllib.request

from kvbench.errors import InputError
from kvbench.http.lifetime import told_to_stop
from kvbench.stack.process import GRACE_SECONDS

EVERY_SECONDS = 0.25


def foreign_command(url: str, path: str, command: list[str]) -> list[str]:
    """Return the command line that starts `command` as such a child.

    Args:
        url: Where it will answer.
        path: What answers with 200 once it is ready.
        command: Its own command line.
    """
    return [sys.executable, "-m", "kvbench.stack.foreign", url, path, *command]


async def serve(url: str, path: str, command: list[str]) -> int:
    """Run a server until it ends or is to; return its exit code, 0 if it was told to stop.

    Raises:
        InputError: There is no such command.
    """
    told = asyncio.ensure_future(told_to_stop(with_parent=True))
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=sys.stderr.fileno(),
            start_new_session=True,
        )
    except OSError as error:
        raise InputError(f"{command[0]} cannot be started: {error.strerror}") from None
    ended = asyncio.ensure_future(process.wait())
    ready = asyncio.ensure_future(_ready(url, path))
    try:
        await asyncio.wait({told, ended, ready}, return_when=asyncio.FIRST_COMPLETED)
        if ready.done():
            await asyncio.wait({told, ended}, return_when=asyncio.FIRST_COMPLETED)
        return ended.result() if ended.done() else 0
    finally:
        ready.cancel()
        await _end(process)


async def _ready(url: str, path: str) -> None:
    """Print the line once the server answers."""
    while True:
        if await asyncio.to_thread(_answers, f"{url}{path}"):
            break
        await asyncio.sleep(EVERY_SECONDS)
    sys.stdout.write(f"ready {url}\n")
    sys.stdout.flush()


def _answers(url: str) -> bool:
    """Return whether a GET of `url` brings 200."""
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:  # noqa: S310 - our own loopback
            return bool(answer.status == 200)
    except OSError:
        return False


async def _end(process: asyncio.subprocess.Process) -> None:
    """End a server: politely, and then all that is left of its session."""
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), 0.8 * GRACE_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


if __name__ == "__main__":
    try:
        sys.exit(asyncio.run(serve(sys.argv[1], sys.argv[2], sys.argv[3:])))
    except InputError as error:
        sys.stderr.write(f"{error.message}\n")
        sys.exit(error.exit_code)
