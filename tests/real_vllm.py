"""What it takes to start a real vLLM on the CPU: three ports that are free, and patience."""

import socket
import urllib.request
from contextlib import ExitStack

import pytest

from kvbench.stack.process import Child

START_SECONDS = 400  # two engines that compile on two busy cores
OFFSETS = (0, 1000, 2000)  # the pod's own port, its KV events, their replay


def free_port() -> int:
    """Return a port that is free together with the two that belong to it."""
    while True:
        with ExitStack() as stack:
            first = stack.enter_context(socket.socket())
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            try:
                for offset in OFFSETS[1:]:
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", port + offset))
            except (OSError, OverflowError):
                continue
            return port


def wait_healthy(child: Child, url: str) -> None:
    """Wait until a pod answers, or fail with the end of its log."""
    waited = 0
    while waited < START_SECONDS:
        assert child.wait(1) is None, f"{child.name} ended{child.tail(40)}"
        waited += 1
        try:
            urllib.request.urlopen(f"{url}/health", timeout=5).close()
        except OSError:
            continue
        return
    pytest.fail(f"{child.name} did not come up in {START_SECONDS} s{child.tail(40)}")
