"""Asking Prometheus what a panel asks, without one."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from kvbench.dashboards.panel import Panel, Query
from kvbench.dashboards.replay import Prometheus, Span, answer, filled, legend
from kvbench.errors import TargetError

SPAN = Span(0.0, 10.0, 5.0, "1m")
PANEL = Panel("P", "It shows.", "short", (Query("x", "{{pod}}"),))


@contextmanager
def prometheus(result, status=200):
    """Serve one answer to everything, and yield a client and the questions."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        """One request."""

        def do_GET(self):
            """Answer."""
            asked.append(urlsplit(self.path))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(result).encode())

        def log_message(self, *_arguments):
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        often = {"poll_interval": 0.01}  # else it takes half a second to end
        threading.Thread(target=server.serve_forever, kwargs=often, daemon=True).start()
        yield Prometheus(f"http://127.0.0.1:{server.server_port}"), asked
        server.shutdown()


def series(*values, **labels):
    """Return Prometheus' answer with one series."""
    points = [[5 * n, value] for n, value in enumerate(values)]
    return {"data": {"result": [{"metric": labels, "values": points}]}}


def test_grafanas_variables_are_replaced_by_everything():
    """And the window of rates by one that fits."""
    assert filled('rate(x{pod=~"$pod"}[$__rate_interval])', SPAN) == 'rate(x{pod=~".*"}[1m])'


def test_a_legend_names_labels():
    """One that is absent is nothing."""
    assert legend("{{pod}} {{ le }}{{gone}}", {"pod": "a", "le": "1"}) == "a 1"


def test_a_panel_with_a_past_asks_for_a_range():
    """From, to and step."""
    with prometheus(series("1", "2", pod="a")) as (client, asked):
        got = answer(PANEL, client, SPAN, ["pods"])

    assert got.faults == ()
    assert [(one.name, one.latest) for one in got.series[0]] == [("a", 2.0)]
    assert asked[0].path == "/api/v1/query_range"
    assert parse_qs(asked[0].query)["step"] == ["5"]


def test_a_table_asks_for_the_present():
    """At the end of the span."""
    table = Panel("T", "It lists.", "short", (Query("x", "n"),), kind="table")
    result = {"data": {"result": [{"metric": {}, "value": [10, "3"]}]}}
    with prometheus(result) as (client, asked):
        got = answer(table, client, SPAN, ["pods"])

    assert got.series[0][0].latest == 3.0
    assert parse_qs(asked[0].query)["time"] == ["10.000"]


@pytest.mark.parametrize("value", ["NaN", "+Inf"])
def test_what_is_no_number_is_a_fault(value):
    """Wherever it stands."""
    with prometheus(series("1", value)) as (client, _):
        got = answer(PANEL, client, SPAN, ["pods"])

    assert got.faults == ("1 values are no numbers: x",)


def test_nothing_is_a_fault_only_where_there_should_be_something():
    """Not where it is good news, nor where the part is not running."""
    quiet = Panel("Q", "Errors.", "short", PANEL.queries, quiet=True)
    routed = Panel("R", "Routed.", "short", PANEL.queries, needs="router")
    with prometheus({"data": {"result": []}}) as (client, _):
        assert answer(PANEL, client, SPAN, ["pods"]).faults == ("no data",)
        assert answer(quiet, client, SPAN, ["pods"]).faults == ()
        assert answer(routed, client, SPAN, ["pods"]).faults == ()
        assert answer(routed, client, SPAN, ["pods", "router"]).faults == ("no data",)


def test_a_query_that_prometheus_refuses_is_a_fault_with_its_words():
    """The board is asked to its end all the same."""
    with prometheus({"error": "parse error: x"}, status=400) as (client, _):
        (fault,) = answer(PANEL, client, SPAN, ["pods"]).faults

    assert "parse error: x" in fault


@pytest.mark.parametrize(
    ("result", "status", "got"),
    [
        ({"error": {"message": "no such path"}}, 404, "404 Not Found"),
        ("<html>", 500, "500 Internal Server Error"),
        ([], 200, "other JSON"),
        ({"data": {"result": [{"metric": {}}]}}, 200, "other JSON"),
    ],
)
def test_another_server_is_no_prometheus(result, status, got):
    """Grafana, or a router, at the address: an error of the user's, and no traceback."""
    with (
        prometheus(result, status) as (client, _),
        pytest.raises(TargetError, match=f"expected Prometheus, got {got}"),
    ):
        answer(PANEL, client, SPAN, ["pods"])


def test_what_is_no_prometheus_is_said():
    """Nothing listens there."""
    with pytest.raises(TargetError, match="expected Prometheus, got"):
        answer(PANEL, Prometheus("http://127.0.0.1:9"), SPAN, ["pods"])
