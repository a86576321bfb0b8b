"""What Prometheus scrapes, locally and under Docker."""

from __future__ import annotations

import yaml
from stack.composed import read

from kvbench.stack import topology
from kvbench.stack.scraping import Addresses, prometheus_config

IN_DOCKER = Addresses(
    exporter=f"exporter:{topology.EXPORTER_PORT}",
    router=f"router:{topology.ROUTER_PORT}",
    load=f"load:{topology.LOCUST_PORT}",
    prometheus=f"127.0.0.1:{topology.PROMETHEUS_PORT}",
    alertmanager=f"alertmanager:{topology.ALERTMANAGER_PORT}",
)


def test_docker_scrapes_what_a_local_stack_does_and_gpus():
    """GPUs are found where they are: DCGM's exporter runs with profile gpu alone."""
    written = yaml.safe_load(read("alerts/compose/prometheus.yml"))
    [dcgm] = [job for job in written["scrape_configs"] if job["job_name"] == "dcgm"]
    written["scrape_configs"].remove(dcgm)

    assert written == prometheus_config(IN_DOCKER, "/etc/prometheus/alerts/*.rules.yml")
    assert dcgm["dns_sd_configs"][0] | {"refresh_interval": ""} == {
        "names": ["dcgm"],
        "type": "A",
        "port": topology.DCGM_PORT,
        "refresh_interval": "",
    }


def test_where_there_is_no_load_none_is_scraped():
    """`kvbench run` brings its own, and goes."""
    local = Addresses("h:1", "h:2", None, "h:3", "h:4")

    jobs = [job["job_name"] for job in prometheus_config(local, "*.yml")["scrape_configs"]]

    assert jobs == ["vllm", "kvbench-router", "kvbench-exporter", "prometheus", "alertmanager"]
