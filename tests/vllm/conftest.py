"""Two real vLLM pods on the CPU, behind kvbench's router."""

import os
from contextlib import ExitStack
from pathlib import Path

import pytest
from real_vllm import free_port, wait_healthy

from kvbench.stack.process import Child, kvbench_command


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
