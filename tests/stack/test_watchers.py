"""Exporter, Prometheus and Alertmanager beside a local stack."""

from __future__ import annotations

import json
import urllib.request

import pytest
from monitoring import until

from kvbench.errors import InputError
from kvbench.stack.local import LocalStack
from kvbench.stack.process import check
from kvbench.stack.topology import PodSpec, Topology
from kvbench.stack.watchers import Watchers, installed


def ask(url: str):
    """Return the data of an answer of Prometheus."""
    with urllib.request.urlopen(url) as answer:
        return json.load(answer)["data"]


@pytest.mark.stack
def test_a_local_stack_is_watched_as_the_composed_one_is(tmp_path):
    """Pods, parts and rules; and nothing of it outlives the stack."""
    with (
        LocalStack(Topology(pods=(PodSpec(),)), tmp_path) as stack,
        Watchers(stack, tmp_path, "127.0.0.1", None) as watchers,
    ):
        where = {child.name: child.url for child in watchers.children}
        prometheus = where["prometheus"]

        def jobs():
            """Return the jobs, once each target has been scraped."""
            targets = ask(f"{prometheus}/api/v1/targets")["activeTargets"]
            found = sorted(t["labels"]["job"] for t in targets if t["health"] == "up")
            return found if len(found) == 5 else None

        assert until(jobs, 30, "five targets are up") == [
            "alertmanager",
            "kvbench-exporter",
            "kvbench-router",
            "prometheus",
            "vllm",
        ]
        assert len(ask(f"{prometheus}/api/v1/rules")["groups"]) >= 4
        check(watchers.children)

    assert [child.poll() for child in watchers.children] == [0, 0, 0]


def test_what_is_not_installed_is_named_with_the_way_to_get_it():
    """The first name is the program's own."""
    with pytest.raises(InputError, match="--watch: no-such-program is not installed") as error:
        installed("no-such-program", "nor-this")

    assert "apt-get install prometheus" in error.value.hint
    assert installed("no-such-program", "sh").endswith("/sh")
