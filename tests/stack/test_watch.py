import threading
from http.server import BaseHTTPRequestHandler

import pytest
from serving import serving

from kvbench.records.run import RunFolder
from kvbench.records.server import read_server
from kvbench.stack.target import Target
from kvbench.stack.watch import ServerWatch, servers_of


class _Metrics(BaseHTTPRequestHandler):
    """Counts how often it was asked, and says so."""

    asked = 0
    enough = threading.Event()

    def do_GET(self):
        """Answer with a counter that grows by ten."""
        type(self).asked += 1
        if type(self).asked >= 4:
            self.enough.set()
        body = b"vllm:prefix_cache_hits_total %d\n" % (10 * self.asked)
        self.send_response(200 if self.path == "/metrics" else 404)
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def metrics():
    """A server on a free port."""
    _Metrics.asked = 0
    _Metrics.enough.clear()
    with serving(_Metrics) as url:
        yield url


def test_a_server_is_asked_before_during_and_after(metrics, tmp_path):
    """Two looks at least, and more the longer it takes; a server that is gone leaves a gap."""
    folder = RunFolder(tmp_path)
    servers = [("pod-0", metrics, "pod"), ("gone", "http://127.0.0.1:1", "pod")]
    with ServerWatch(servers, folder.server_path, every_s=0.01):
        assert _Metrics.enough.wait(20)
    series = read_server(folder, None)
    looks = len(series["pod-0"].at_s)
    assert looks >= 4
    assert series["pod-0"].gained("hits") == 10 * (looks - 1)
    assert series["gone"].silent == looks


def test_a_disk_that_takes_nothing_ends_the_watching_and_not_the_run(metrics, tmp_path):
    """The folder is not there: nothing is raised."""
    path = tmp_path / "missing" / "server.jsonl"
    with ServerWatch([("pod-0", metrics, "pod")], path, every_s=0.01):
        pass
    assert not path.exists()


def test_pods_are_watched_and_the_router_where_there_is_one():
    """A target that is a pod itself is watched once."""
    pods = {"a": "http://a", "b": "http://b"}
    routed = Target("http://r", "m", None, None, pods, 16, routed=True)
    alone = Target("http://a", "m", None, None, {"a": "http://a"}, 16, routed=False)
    assert servers_of(routed) == [
        ("a", "http://a", "pod"), ("b", "http://b", "pod"), ("router", "http://r", "router"),
    ]  # fmt: skip
    assert servers_of(alone) == [("a", "http://a", "pod")]
