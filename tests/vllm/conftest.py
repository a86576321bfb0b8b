"""Two real vLLM pods on the CPU, behind kvbench's router."""

import os
import socket
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest

from kvbench.stack.process import Child, kvbench_command

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


@pytest.fixture(scope="session")
def real_pods(tmp_path_factory) -> list[str]:
    """Return the URLs of two real pods; they are ended with the test session."""
    serve = os.environ.get("REAL_VLLM")
    if not serve or not Path(serve).exists():
        pytest.fail("these tests need a real vLLM: make test-vllm REAL_VLLM=path/to/serve")
    logs = tmp_path_factory.mktemp("vllm")
    with ExitStack() as stack:
        started = []
        for number in (1, 2):
            port = free_port()
            command = [serve, str(port), "--num-gpu-blocks-override", "600"]
            child = Child(f"real pod {number}", command, logs / f"pod-{number}.log")
            started.append((stack.enter_context(child), f"http://127.0.0.1:{port}"))
        for child, url in started:
            wait_healthy(child, url)
        yield [url for _, url in started]


@pytest.fixture
def router(real_pods, tmp_path) -> str:
    """Return the URL of a router in front of the real pods."""
    pods = [word for url in real_pods for word in ("--pod", url)]
    command = kvbench_command("router", "--port", "0", "--exit-with-parent", *pods)
    with Child("router", command, tmp_path / "router.log") as child:
        yield child.wait_ready(60)
