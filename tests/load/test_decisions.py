"""What a router decides is collected by the master too, where Locust was started by hand."""

from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, urlsplit

import gevent
import msgspec
import pytest
from records.test_decisions import entry
from serving import serving

from kvbench.load.decisions import decisions_collected
from kvbench.load.settings import Settings
from kvbench.records.decisions import read_decisions
from kvbench.records.run import RunFolder


class _Router(BaseHTTPRequestHandler):
    """Tells decisions to those who have its key."""

    ended = 3
    asked = ()

    def do_GET(self):
        """Tell those since a number."""
        type(self).asked += (self.path,)
        if self.headers["authorization"] != "Bearer secret":
            self.send_error(401)
            return
        query = parse_qs(urlsplit(self.path).query)
        found = [
            entry(f"{'run' if n > 3 else 'old'}-{n}", n)
            for n in range(int(query["since"][0]) + 1, self.ended + 1)
        ]
        body = {"decisions": found[: int(query["limit"][0])], "ended": self.ended}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(msgspec.json.encode(body))


@pytest.fixture
def router():
    """A server on a free port."""
    _Router.ended, _Router.asked = 3, ()
    with serving(_Router) as url:
        yield url


@pytest.fixture
def collected(tmp_path, monkeypatch):
    """Return a function that collects a run's decisions, of which so many are made meanwhile."""
    monkeypatch.setenv("OPENAI_API_KEY", "secret")

    def collect(host, decisions):
        folder = RunFolder(tmp_path / "run")
        folder.path.mkdir()
        settings = Settings.parse(host, {"workload": "small.yaml"})
        with decisions_collected(settings, folder):
            gevent.sleep(0)
            _Router.ended += decisions
        return list(read_decisions(folder.decisions_path))

    return collect


@pytest.mark.parametrize("suffix", ["", "/", "/v1"])
def test_the_decisions_of_the_run_are_collected_to_its_end(router, collected, suffix):
    """With the key that the load has; those of before are left."""
    assert collected(router + suffix, 250) == [f"run-{n}" for n in range(4, 254)]
    assert _Router.asked[:2] == ("/decisions?since=0&limit=1", "/decisions?since=3&limit=100")


def test_a_target_that_tells_nothing_is_asked_once(router, collected, monkeypatch):
    """It is a pod, or a router that is another one; the run goes on."""
    monkeypatch.setenv("OPENAI_API_KEY", "another")
    assert collected(router, 5) == []
    assert len(_Router.asked) == 1


def test_a_target_that_is_not_there_costs_nothing(collected):
    """Its turns will say so."""
    assert collected("http://127.0.0.1:1", 5) == []
