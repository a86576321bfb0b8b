"""The dashboards over real engines, with the exporter beside them."""

from __future__ import annotations

import subprocess
import time
from urllib.parse import urlsplit

import pytest
from monitoring import Watchers

from kvbench.alerts.settings import Settings, Windows
from kvbench.dashboards.boards import boards
from kvbench.dashboards.picture import render
from kvbench.dashboards.replay import Prometheus, Span, replay
from kvbench.stack.process import Child, kvbench_command

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

WORKLOAD = """
name: real
api: chat
seed: 12
prefixes:
  - {name: system, count: 3, tokens: 400}
sessions: {count: 14, turns: 4, user_tokens: 40, answer_tokens: 12, think: 0.2}
arrival: {poisson: {rate: 1.5}}
"""


def host(url):
    """Return host:port."""
    return urlsplit(url).netloc


def with_events(url):
    """Return a pod as `--pod` takes it: events 1,000 ports further on, their replay 2,000."""
    port = urlsplit(url).port
    return f"{url},events=tcp://127.0.0.1:{port + 1000},replay=tcp://127.0.0.1:{port + 2000}"


def test_every_panel_of_pods_and_exporter_has_numbers_from_real_engines(
    real_pods, router, tmp_path
):
    """Not one name, label or unit that only the simulated pod has."""
    pods = [word for url in real_pods for word in ("--pod", with_events(url))]
    command = kvbench_command("exporter", "--port", "0", "--exit-with-parent", *pods)
    (tmp_path / "real.yaml").write_text(WORKLOAD)
    settings = Settings(windows=Windows().scaled(1 / 20))
    with (
        Watchers(tmp_path / "watch", settings) as watchers,
        Child("exporter", command, tmp_path / "exporter.log") as exporter,
    ):
        url = watchers.start_prometheus()
        watchers.scrape("vllm", {None: [host(pod) for pod in real_pods]})
        watchers.scrape("kvbench-exporter", {None: [host(exporter.wait_ready(60))]})
        watchers.scrape("kvbench-router", {None: [host(router)]})
        subprocess.run(
            kvbench_command("run", "real.yaml", "--target", router, "--max-lateness", "9s"),
            cwd=tmp_path,
            check=True,
            capture_output=True,
        )
        end = time.time()  # noqa: TID251 - Prometheus lives in calendar time
        span = Span(end - 20, end, 1.0, "15s")
        answered = {
            board: replay(board, Prometheus(url), span, ["pods", "exporter", "router"])
            for board in boards(settings)
        }
        for board, answers in answered.items():
            render(board, answers, span, tmp_path / f"{board.title}.png")

    faults = {
        f"{board.title}: {answer.panel.title}": answer.faults
        for board, answers in answered.items()
        for answer in answers
        if answer.faults
    }
    assert faults == {}
