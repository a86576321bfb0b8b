"""The command line of the load generator: Locust in a process of its own.

The flags are those of `kvbench.load.settings`, which cannot be imported here: what imports Locust
stays in its own process. A test holds the two together. Locust's own habit of failing when a
request failed is switched off: failed turns are rows, and judging them is the parent's business.
Its exit code says whether every planned turn has its row.
"""

from __future__ import annotations

import re
import socket
import sys
from pathlib import Path
from typing import Literal

_COMPLAINT = re.compile(r"/ERROR/kvbench: (.*)")

LOCUSTFILE = Path(__file__).parents[1] / "load" / "locustfile.py"


def free_port() -> int:
    """Return a port of loopback that nobody listens at: Locust does not tell which one it took."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port


def complaints(log: str) -> list[str]:
    """Return what the load generator says is wrong, in its own sentences, out of its log."""
    return list(dict.fromkeys(_COMPLAINT.findall(log)))


def locust_command(
    *,
    host: str,
    run_dir: Path,
    workload: Path | None = None,
    trace: Path | None = None,
    limit: int | None = None,
    speed: float = 1.0,
    seed: int | None = None,
    model: str | None = None,
    tokenizer: Path | None = None,
    isolation: Literal["salt", "none"] = "salt",
    block_size: int = 16,
    request_timeout_s: float = 600.0,
    max_in_flight: int = 4096,
    processes: int = 1,
    master_port: int = 5557,
    metrics_host: str | None = None,
    metrics_port: int | None = None,
) -> list[str]:
    """Return the command that sends a plan to `host` and writes its rows into `run_dir`.

    Set KVBENCH_EXIT_WITH_PARENT=1 in its environment, and it stops at end-of-file on its standard
    input. With more than one process, Locust's master listens on `master_port` of loopback.
    """
    flags: dict[str, object] = {
        "--host": host,
        "--run-dir": run_dir,
        "--workload": workload,
        "--trace": trace,
        "--limit": limit,
        "--speed": speed,
        "--seed": seed,
        "--model": model,
        "--tokenizer": tokenizer,
        "--isolation": isolation,
        "--block-size": block_size,
        "--request-timeout": f"{request_timeout_s}s",
        "--max-in-flight": max_in_flight,
        "--metrics-host": metrics_host,
        "--metrics-port": metrics_port,
    }
    if processes > 1:
        flags |= {
            "--processes": processes,
            "--master-bind-host": "127.0.0.1",
            "--master-bind-port": master_port,
            "--master-port": master_port,
        }
    given = [f"{flag}={value}" for flag, value in flags.items() if value is not None]
    fixed = ["--headless", "--only-summary", "--loglevel", "WARNING", "--exit-code-on-error", "0"]
    return [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), *fixed, *given]
