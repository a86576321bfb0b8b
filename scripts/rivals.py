"""The routers that kvbench's is compared with, each started in its own way on a core of its own.

Peers come from PyPI, each into an environment of its own, outside this repository:

    python3 -m venv FOLDER/vllm-router   && FOLDER/vllm-router/bin/pip install vllm-router
    python3 -m venv FOLDER/sglang-router && FOLDER/sglang-router/bin/pip install sglang-router

nginx is Debian's; kvbench's own busiest modules are compiled by `make build/compiled`. What is not
installed is left out, and said. CPU time and memory are those of the process, as Linux
tells them.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

from cpu import cpu_seconds

KVBENCH = Path(sys.executable).with_name("kvbench")
COMPILED = Path(__file__).parent.parent / "build" / "compiled"
NGINX = """
daemon off; master_process off; pid {folder}/pid; error_log {folder}/log crit;
events {{ worker_connections 4096; }}
http {{
  access_log off; client_max_body_size 16m; client_body_buffer_size 1m;
  client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c;
  uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
  keepalive_requests 100000000; proxy_buffering off;
  upstream pods {{ {servers} keepalive 256; keepalive_requests 100000000; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{ proxy_pass http://pods; proxy_http_version 1.1; proxy_set_header Connection ""; }}
  }}
}}
"""


@dataclass
class Rival:
    """A router that runs, or the pod itself.

    Attributes:
        name: What it is called in tables.
        port: Where it listens.
        process: It; None where there is no router.
    """

    name: str
    port: int
    process: subprocess.Popen | None = None
    folder: tempfile.TemporaryDirectory = field(default_factory=tempfile.TemporaryDirectory)

    def cpu_seconds(self) -> float:
        """Return the CPU time that it has used."""
        if self.process is None:
            return 0.0
        return cpu_seconds(self.process.pid)

    def memory_mb(self) -> float:
        """Return its resident memory, megabytes."""
        if self.process is None:
            return 0.0
        statm = Path(f"/proc/{self.process.pid}/statm").read_text(encoding="ascii")
        return int(statm.split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6

    def stop(self) -> None:
        """End it."""
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.folder.cleanup()


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def command(name: str, port: int, pods: list[int], peers: Path, folder: str) -> list[str]:
    """Return how "product policy" is started."""
    product, _, policy = name.partition(" ")
    urls = [f"http://127.0.0.1:{pod}" for pod in pods]
    ends = ["--host", "127.0.0.1", "--port", str(port)]
    if product in {"kvbench", "kvbench-compiled"}:
        each = [part for url in urls for part in ("--pod", url)]
        kvbench = KVBENCH if product == "kvbench" else COMPILED / "bin" / "kvbench"
        return [str(kvbench), "router", *ends, "--policy", policy, *each]
    ends += ["--worker-urls", *urls, "--policy", policy]
    if product == "vllm-router":
        ends += ["--prometheus-port", str(free_port()), "--worker-startup-check-interval", "1"]
        return [str(peers / product / "bin" / product), *ends]
    if product == "sglang-router":
        ends += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port())]
        return [str(peers / product / "bin" / product), "launch", *ends]
    servers = " ".join(f"server 127.0.0.1:{pod};" for pod in pods)
    settings = NGINX.format(folder=folder, servers=servers, port=port)
    (Path(folder) / "nginx.conf").write_text(settings, encoding="ascii")
    return [shutil.which("nginx") or "/usr/sbin/nginx", "-c", f"{folder}/nginx.conf"]


def start(name: str, pods: list[int], peers: Path, core: int | None = None) -> Rival | None:
    """Start a router and wait until it answers; None if it is not installed."""
    rival = Rival(name, free_port())
    words = command(name, rival.port, pods, peers, rival.folder.name)
    if not Path(words[0]).exists():
        print(f"{name}: {words[0]} is not installed; left out", file=sys.stderr)
        return None
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores if core is None else {core})  # children inherit it
    quiet = subprocess.DEVNULL
    compiled = {"PYTHONPATH": str(COMPILED)} if name.startswith("kvbench-compiled") else {}
    rival.process = subprocess.Popen(  # noqa: S603 - our own command line
        words, stdout=quiet, stderr=quiet, stdin=quiet, env={**os.environ, **compiled}
    )
    os.sched_setaffinity(0, cores)
    body = b'{"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}'
    question = urllib.request.Request(
        f"http://127.0.0.1:{rival.port}/v1/chat/completions",
        body,
        {"content-type": "application/json"},
    )
    for _ in range(300):
        time.sleep(0.1)
        try:
            with urllib.request.urlopen(question, timeout=5):  # noqa: S310 - our own URL
                return rival
        except OSError:
            continue
    rival.stop()
    raise SystemExit(f"{name} did not answer within half a minute: {' '.join(words)}")
