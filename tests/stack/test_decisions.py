"""What a router decides is collected while a run goes on."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest
from records.test_decisions import entry
from serving import serving

from kvbench.records.decisions import read_decisions
from kvbench.stack.decisions import DecisionWatch

OLD = 3


class _Router(BaseHTTPRequestHandler):
    """Has a thousand and more decisions, of which it tells at most so many at a time."""

    ended = tuple(entry(f"{'run' if n > OLD else 'old'}-{n}", n) for n in range(1, 1204))
    asked = None

    def do_GET(self):
        """Tell those since a number."""
        query = parse_qs(urlsplit(self.path).query)
        since, most = int(query["since"][0]), int(query["limit"][0])
        told = len(self.ended) if self.asked else OLD
        self.asked.append(since)
        found = [one for one in self.ended[:told] if one.number > since][:most]
        body = msgspec.json.encode({"decisions": found, "ended": told})
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def router():
    """A server on a free port."""
    _Router.asked = []
    with serving(_Router) as url:
        yield url


def test_the_decisions_of_the_run_are_collected_once_each(router, tmp_path):
    """Those of before are not; what comes in one piece too many is fetched in several."""
    file = tmp_path / "decisions.jsonl"
    with DecisionWatch(router, file, "run-", every_s=60) as watch:
        pass
    found = read_decisions(file)
    assert list(found) == [f"run-{n}" for n in range(OLD + 1, 1204)]
    assert _Router.asked[:2] == [0, OLD]
    assert len(file.read_text().splitlines()) == 1200
    assert watch.notes() == []


def test_what_was_lost_is_told(router, tmp_path, monkeypatch):
    """For `explain` will miss it."""
    monkeypatch.setattr(_Router, "ended", _Router.ended[:OLD] + _Router.ended[-1000:])
    with DecisionWatch(router, tmp_path / "decisions.jsonl", "run-", every_s=60) as watch:
        pass
    assert watch.notes() == ["200 decisions came faster than they could be collected"]


@pytest.mark.parametrize("url", [None, "http://127.0.0.1:1"])
def test_where_nobody_tells_decisions_there_are_none(url, tmp_path):
    """A pod, or a router that is another one."""
    with DecisionWatch(url, tmp_path / "decisions.jsonl", "run-", every_s=0.001):
        pass
    assert not (tmp_path / "decisions.jsonl").exists()


def test_a_line_is_json(router, tmp_path):
    """For whoever reads it without kvbench."""
    file = tmp_path / "decisions.jsonl"
    with DecisionWatch(router, file, "run-", every_s=60):
        pass
    first = json.loads(file.read_text().splitlines()[0])
    assert (first["id"], first["candidates"][0]["terms"]) == ("run-4", {"prefill_s": 0.1})
