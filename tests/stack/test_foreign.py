"""Servers that are not kvbench's, as children that are."""

from __future__ import annotations

import sys
import urllib.request

import pytest
from stack.test_process import gone

from kvbench.errors import InputError, TargetError
from kvbench.stack.foreign import foreign_command
from kvbench.stack.local import free_ports
from kvbench.stack.process import Child

SERVER = """
import http.server, os, subprocess, sys
port = int(sys.argv[1])
helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
class Handler(http.server.BaseHTTPRequestHandler):
    asked = 0
    def do_GET(self):
        Handler.asked += 1
        self.send_response(200 if Handler.asked > 2 else 503)
        self.end_headers()
        self.wfile.write(f"{os.getpid()} {helper.pid}".encode())
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def started(tmp_path, command):
    """Return a child that runs a foreign server, and where that will answer."""
    [port] = free_ports("127.0.0.1", 1)
    url = f"http://127.0.0.1:{port}"
    filled = [word.replace("{port}", str(port)) for word in command]
    return Child("vllm", foreign_command(url, "/health", filled), tmp_path / "log"), url


def test_it_is_ready_when_the_server_says_so_and_leaves_nothing_running(tmp_path):
    """503 is not ready; what the server itself has started ends too."""
    child, url = started(tmp_path, [sys.executable, "-c", SERVER, "{port}"])
    with child:
        assert child.wait_ready(30) == url
        with urllib.request.urlopen(url) as answer:
            server, helper = map(int, answer.read().split())
        assert child.stop() == 0

    assert gone(server, 5)
    assert gone(helper, 5)


def test_it_ends_with_its_parent(tmp_path):
    """The end of standard input is the parent's end."""
    child, url = started(tmp_path, [sys.executable, "-c", SERVER, "{port}"])
    with child:
        child.wait_ready(30)
        with urllib.request.urlopen(url) as answer:
            server = int(answer.read().split()[0])
        child._process.stdin.close()
        assert child.wait(10) == 0

    assert gone(server, 5)


def test_a_server_that_ends_gives_its_exit_code_and_its_last_words(tmp_path):
    """As if it were the child itself."""
    fails = "import sys; print('no memory'); sys.exit(7)"
    child, _ = started(tmp_path, [sys.executable, "-c", fails])
    with child, pytest.raises(TargetError) as error:
        child.wait_ready(30)

    assert error.value.message == "vllm ended with 7\n    no memory"


def test_a_command_that_is_not_there_is_the_users_to_mend(tmp_path):
    """Its name is said."""
    child, _ = started(tmp_path, ["no-such-vllm"])
    with child, pytest.raises(InputError, match="no-such-vllm cannot be started: No such file"):
        child.wait_ready(30)


def test_ports_that_are_free_at_the_same_time_differ():
    """They are bound together before any is given back."""
    ports = free_ports("127.0.0.1", 20)

    assert len(set(ports)) == 20
