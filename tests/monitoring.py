"""A real Prometheus and a real Alertmanager (Debian's packages) for tests, in seconds."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import threading
import time
import urllib.request
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import yaml

from kvbench.alerts import pack

ALERTS = Path(__file__).parents[1] / "alerts"


def free_port() -> int:
    """Return a port that nobody had a moment ago: neither program prints the one it took."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def until(true, timeout_s, what):
    """Ask `true` until it says something; fail after `timeout_s`."""
    end = time.monotonic() + timeout_s
    pause = threading.Event()
    while not (said := true()):
        assert time.monotonic() < end, f"not after {timeout_s} s: {what}"
        pause.wait(0.2)
    return said


def answers(url):
    """Return whether a URL answers with 200."""
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return answer.status == 200
    except OSError:
        return False


class Webhook(ThreadingHTTPServer):
    """Takes in what Alertmanager sends."""

    def __init__(self):
        """Listen on a free port."""
        self.received = deque()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            """One request."""

            def do_POST(self):
                """Keep the alerts of a notification."""
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.received.extend(json.loads(body)["alerts"])
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_arguments):
                """Say nothing."""

        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def fired(self):
        """Return (job, alert name) of every alert that arrived firing."""
        return {
            (alert["labels"].get("job", ""), alert["labels"]["alertname"])
            for alert in list(self.received)
            if alert["status"] == "firing"
        }


class Watchers(contextlib.ExitStack):
    """Prometheus, and Alertmanager with a webhook if asked for.

    Args:
        folder: For their data and settings.
        settings: Of the rules that are loaded.
        scrape_s: Seconds between scrapes and evaluations.
    """

    def __init__(self, folder, settings, scrape_s=1):
        """Prepare the folder as `alerts/prometheus.yml` says, in other intervals."""
        super().__init__()
        self.folder = folder
        self._targets = folder / "targets"
        self._targets.mkdir(parents=True)
        config = yaml.safe_load((ALERTS / "prometheus.yml").read_text())
        config["global"] = dict.fromkeys(("scrape_interval", "evaluation_interval"), f"{scrape_s}s")
        for job in config["scrape_configs"]:
            job["file_sd_configs"][0]["refresh_interval"] = "1s"
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        for name, text in pack.files(settings).items():
            if name.endswith(".rules.yml"):
                (folder / name).write_text(text)

    def scrape(self, job, groups):
        """Set what a job scrapes: {labels' job or None: [host:port, …]}."""
        content = [
            {"targets": targets, "labels": {"job": label} if label else {}}
            for label, targets in groups.items()
        ]
        half = self._targets / f"{job}.new"
        half.write_text(yaml.safe_dump(content))
        half.rename(self._targets / f"{job}.yml")

    def start_prometheus(self):
        """Start Prometheus and return its URL."""
        port = free_port()
        self._run(
            "prometheus",
            f"--config.file={self.folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={self.folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        )
        url = f"http://127.0.0.1:{port}"
        until(lambda: answers(f"{url}/-/ready"), 30, "Prometheus")
        return url

    def start_alertmanager(self):
        """Start Alertmanager with the project's inhibitions, and return its webhook."""
        hook = self.enter_context(Webhook())
        self.callback(hook.shutdown)
        config = yaml.safe_load((ALERTS / "alertmanager.yml").read_text())
        config["route"] |= {"group_wait": "1s", "group_interval": "2s"}
        url = f"http://127.0.0.1:{hook.server_port}"
        config["receivers"] = [
            {"name": config["route"]["receiver"], "webhook_configs": [{"url": url}]}
        ]
        (self.folder / "alertmanager.yml").write_text(yaml.safe_dump(config))
        port = free_port()
        self._run(
            "prometheus-alertmanager",
            f"--config.file={self.folder / 'alertmanager.yml'}",
            f"--storage.path={self.folder / 'am'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--cluster.listen-address=",
        )
        until(lambda: answers(f"http://127.0.0.1:{port}/-/ready"), 30, "Alertmanager")
        self.scrape("alertmanager", {None: [f"127.0.0.1:{port}"]})
        return hook

    def _run(self, *command):
        """Start a process that ends with this test."""
        assert shutil.which(command[0]), f"{command[0]} is missing: apt-get install {command[0]}"
        log = (self.folder / f"{command[0]}.log").open("w")
        self.callback(log.close)
        process = subprocess.Popen(command, stdout=log, stderr=log)
        self.callback(process.wait)
        self.callback(process.kill)
