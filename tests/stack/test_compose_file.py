"""docker-compose.yml says what the topology says, is safe, and is understood by Compose."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess

import pytest
import yaml
from stack.composed import ROOT, composed, read, variables

from kvbench.stack import topology
from kvbench.stack.topology import IN_CONTAINER, ExporterSpec, PodSpec, RouterSpec, VllmSpec
from kvbench.zmqfeed.sources import parse_pod

SERVICES = composed()["services"]
ONCE = {"gpu-weights", "cpu-weights"}
"""Services that do something and end."""


@pytest.mark.parametrize("profile", ["gpu", "cpu", "sim", ""])
@pytest.mark.skipif(not shutil.which("docker"), reason="needs Docker; CI has it")
def test_compose_understands_every_profile(profile):
    """With the settings of .env.example, and without any."""
    env = {**os.environ, "COMPOSE_PROFILES": profile}
    command = ["docker", "compose", "config", "--quiet"]

    for more in ([], ["--env-file", ".env.example"]):
        command[2:2] = more
        done = subprocess.run(
            command, cwd=ROOT, env=env, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")


def test_docker_has_the_parts_of_a_watched_local_stack_and_those_that_need_docker():
    """`kvbench up --watch` starts the former; tests/stack/test_watchers.py counts them."""
    local = {"router", "exporter", "prometheus", "alertmanager"}
    pods = {f"{kind}-{number}" for kind in ("sim", "gpu", "cpu") for number in (1, 2)}
    images = {"grafana", "dcgm", "gpu-weights", "cpu-weights"}
    always_there = {"load", "load-worker"}  # locally `kvbench run` brings its own

    assert SERVICES.keys() == local | pods | images | always_there


@pytest.mark.parametrize("pod", ["sim-1", "sim-2"])
def test_simulated_pods_are_those_of_the_topology(pod):
    """Flag for flag."""
    assert SERVICES[pod]["command"] == PodSpec().arguments(IN_CONTAINER)


@pytest.mark.parametrize("pod", ["gpu-1", "gpu-2", "cpu-1", "cpu-2"])
def test_real_pods_are_those_of_the_topology(pod):
    """The same flags; the values are the settings'."""
    on_gpu = pod.startswith("gpu")
    spec = VllmSpec(
        "/models/org/m",
        name="org/m",
        block_size=64,
        max_model_len=512,
        gpu_memory_utilization=0.5 if on_gpu else None,
    )
    service = composed(
        VLLM_MODEL="org/m",
        KVBENCH_BLOCK_SIZE="64",
        VLLM_MAX_MODEL_LEN="512",
        VLLM_GPU_MEMORY_UTILIZATION="0.5",
    )["services"][pod]

    words = service["entrypoint"] + service["command"]

    assert words[:3] == spec.starting(IN_CONTAINER)[:3]
    assert sorted(words) == sorted(spec.starting(IN_CONTAINER))


@pytest.mark.parametrize("kind", ["gpu", "cpu"])
def test_weights_are_brought_once_to_where_pods_router_and_load_look(kind):
    """A tokenizer that lies where the model says it does is found by router and load."""
    services = composed(VLLM_MODEL="org/m", VLLM_REVISION="abc")["services"]
    bringer = services[f"{kind}-weights"]

    assert bringer["entrypoint"] + bringer["command"][:3] == [
        *("hf", "download", "org/m", "--revision=abc", "--local-dir=/models/org/m")
    ]
    assert services[f"{kind}-1"]["depends_on"] == {
        f"{kind}-weights": {"condition": "service_completed_successfully"}
    }
    for reader in (f"{kind}-1", f"{kind}-2", "router", "load", "load-worker"):
        assert "models:/models:ro" in services[reader]["volumes"]
    defaults = {services[name]["command"][0] for name in (f"{kind}-1", f"{kind}-2")}
    assert defaults == {"/models/org/m"}


def test_router_and_exporter_are_those_of_the_topology():
    """The pods they get from KVBENCH_PODS."""
    anywhere, port = IN_CONTAINER.host, topology.ROUTER_PORT

    router = RouterSpec().arguments(anywhere, port)
    exporter = ExporterSpec().arguments(anywhere, topology.EXPORTER_PORT, f"http://router:{port}")

    assert SERVICES["router"]["command"] == router
    assert SERVICES["exporter"]["command"] == exporter


def test_what_is_published_are_the_topologys_ports_and_only_on_loopback():
    """Pods, exporter, workers and DCGM are reached from within alone."""
    published = {name: s["ports"] for name, s in SERVICES.items() if "ports" in s}

    assert published == {
        name: [f"127.0.0.1:{port}:{port}"]
        for name, port in {
            "router": topology.ROUTER_PORT,
            "load": topology.LOCUST_PORT,
            "prometheus": topology.PROMETHEUS_PORT,
            "alertmanager": topology.ALERTMANAGER_PORT,
            "grafana": topology.GRAFANA_PORT,
        }.items()
    }


@pytest.mark.parametrize("kind", ["sim", "gpu", "cpu"])
def test_pods_of_each_profile_are_where_router_and_exporter_look_for_them(kind):
    """Whoever plays pod 1 answers to the name pod-1."""
    pods = [SERVICES[f"{kind}-{number}"] for number in (1, 2)]
    assert all(pod["profiles"] == [kind] for pod in pods)
    names = [pod["networks"]["default"]["aliases"][0] for pod in pods]

    for reader in ("router", "exporter"):
        words = SERVICES[reader]["environment"]["KVBENCH_PODS"].split()
        assert words == [
            f"http://{name}:{topology.POD_PORT},events=tcp://{name}:{topology.EVENTS_PORT},"
            f"replay=tcp://{name}:{topology.REPLAY_PORT}"
            for name in names
        ]
        assert [parse_pod(word)[0] for word in words] == [f"http://{name}:8000" for name in names]


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_can_do_no_more_than_it_must(name):
    """Nobody is root, and nobody can become it."""
    service = SERVICES[name]

    assert service["cap_drop"] == ["ALL"]
    assert "cap_add" not in service
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["read_only"] is True
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", service["user"])
    assert not service.keys() & {"privileged", "network_mode", "pid", "ipc", "devices", "env_file"}
    assert "docker.sock" not in str(service)


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_pinned_bounded_watched_and_ends_in_its_own_time(name):
    """Logs turn over; what serves is asked whether it is well."""
    service = SERVICES[name]
    limits = service["deploy"]["resources"]["limits"]

    assert re.search(r":v?\d+\.\d+[\w.-]*$", service["image"])
    assert limits.keys() == {"cpus", "memory", "pids"}
    assert service["logging"]["options"] == {"max-size": "10m", "max-file": "3"}
    assert service["restart"] == ("no" if name in ONCE else "unless-stopped")
    assert ("healthcheck" in service) is (name not in ONCE)


def test_a_pod_and_the_router_may_finish_their_streams():
    """Longer than `--grace` of theirs, 30 s."""
    for name in ("sim-1", "gpu-1", "cpu-1", "router"):
        assert SERVICES[name]["stop_grace_period"] == "40s"


def test_parts_start_when_those_they_need_are_well():
    """Router after pods, load after the router, Grafana after Prometheus."""
    order = {name: service.get("depends_on", {}) for name, service in SERVICES.items()}
    healthy = {"condition": "service_healthy"}

    pods = {"sim-1", "sim-2", "gpu-1", "gpu-2", "cpu-1", "cpu-2"}
    assert order["router"] == {pod: {**healthy, "required": False} for pod in pods}
    assert order["load"] == {"router": healthy}
    assert order["load-worker"] == {"load": healthy}
    assert order["prometheus"] == {"exporter": healthy}
    assert order["grafana"] == {"prometheus": healthy}


def test_every_variable_stands_with_its_default_in_the_example():
    """A default that differs by profile is told there in words."""
    example = dict(
        re.findall(r"^#?([A-Z][A-Z_0-9]+)=(.*?)(?: +#.*)?$", read(".env.example"), re.MULTILINE)
    )
    example.pop("COMPOSE_PROFILES")

    assert example.keys() == variables().keys()
    for name, defaults in variables().items():
        assert example[name] in defaults


def test_every_variable_is_explained_in_the_docs():
    """By its name, as code."""
    told = set(re.findall(r"`([A-Z][A-Z_0-9]+)`", read("docs/compose.md")))

    assert variables().keys() <= told


@pytest.mark.skipif(not shutil.which("docker"), reason="needs Docker; CI has it")
def test_a_third_pod_is_added_as_the_docs_say(tmp_path):
    """It has a GPU and a name of its own, and not the first one's too."""
    [override] = re.findall(r"```yaml\n(.*?)```", read("docs/compose.md"), re.DOTALL)
    (tmp_path / "override.yml").write_text(override)
    command = ["docker", "compose", "-f", "docker-compose.yml", "-f", tmp_path / "override.yml"]
    command += ["--profile", "gpu", "config", "--format", "json"]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    third = json.loads(done.stdout)["services"]["gpu-3"]

    assert third["networks"] == {"default": {"aliases": ["pod-3"]}}
    devices = third["deploy"]["resources"]["reservations"]["devices"]
    assert [device["device_ids"] for device in devices] == [["2"]]
    assert third["command"] == SERVICES["gpu-1"]["command"]


def test_all_data_live_in_named_volumes():
    """Configuration is mounted read-only; nothing else of the host is."""
    named = composed()["volumes"]
    for name, service in SERVICES.items():
        for mount in service.get("volumes", []):
            source, _, rest = mount.partition(":")
            assert source in named or (source.startswith("./") and rest.endswith(":ro")), name


def test_nobody_enters_grafana_with_a_password_that_everybody_knows():
    """It is given, or made up at the first start; looking without one is off."""
    grafana = SERVICES["grafana"]

    assert "head -c 18 /dev/urandom" in grafana["command"][0]
    assert grafana["environment"]["GRAFANA_PASSWORD"] == ""
    assert grafana["environment"]["GF_AUTH_ANONYMOUS_ENABLED"] == "false"


def test_grafana_is_set_up_with_settings_that_it_documents():
    """Sections and keys of its configuration, and fields of its provisioning files."""
    sections = {
        "SECURITY": {"ADMIN_PASSWORD"},
        "AUTH_ANONYMOUS": {"ENABLED", "ORG_ROLE"},
        "USERS": {"ALLOW_SIGN_UP"},
        "ANALYTICS": {"REPORTING_ENABLED", "CHECK_FOR_UPDATES", "CHECK_FOR_PLUGIN_UPDATES"},
        "PLUGINS": {"PREINSTALL_DISABLED"},
        "DASHBOARDS": {"DEFAULT_HOME_DASHBOARD_PATH"},
    }
    known = {f"GF_{section}_{key}" for section, keys in sections.items() for key in keys}
    grafana = SERVICES["grafana"]
    given = {name for name in grafana["environment"] if name.startswith("GF_")}
    sources = yaml.safe_load(read("dashboards/provisioning/datasources/prometheus.yml"))
    [provider] = yaml.safe_load(read("dashboards/provisioning/dashboards/kvbench.yml"))["providers"]
    home = grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]

    assert given | set(re.findall(r"GF_\w+", grafana["command"][0])) <= known
    for source in sources["datasources"]:
        assert {"name", "type", "access", "url", "uid", "jsonData"} <= source.keys()
        assert source["access"] == "proxy"
        assert source["url"].partition("://")[2].partition(":")[0] in SERVICES
    assert [s["isDefault"] for s in sources["datasources"] if "isDefault" in s] == [True]
    assert provider["type"] == "file"
    assert f"./dashboards:{provider['options']['path']}:ro" in grafana["volumes"]
    assert (ROOT / "dashboards" / home.rpartition("/")[2]).is_file()


def test_prometheus_asks_parts_of_the_stack_on_their_ports():
    """Pods are listed by the exporter, GPUs are found where they are."""
    config = yaml.safe_load(read("alerts/compose/prometheus.yml"))
    jobs = {job["job_name"]: job for job in config["scrape_configs"]}
    fixed = {
        name: job["static_configs"][0]["targets"]
        for name, job in jobs.items()
        if "static_configs" in job
    }

    assert fixed == {
        "kvbench-router": [f"router:{topology.ROUTER_PORT}"],
        "kvbench-exporter": [f"exporter:{topology.EXPORTER_PORT}"],
        "kvbench-load": [f"load:{topology.LOCUST_PORT}"],
        "prometheus": [f"127.0.0.1:{topology.PROMETHEUS_PORT}"],
        "alertmanager": [f"alertmanager:{topology.ALERTMANAGER_PORT}"],
    }
    assert jobs["vllm"]["http_sd_configs"][0]["url"].startswith(
        f"http://exporter:{topology.EXPORTER_PORT}/"
    )
    assert jobs["dcgm"]["dns_sd_configs"][0]["port"] == topology.DCGM_PORT


def test_the_image_holds_no_compiler_no_secret_and_no_root():
    """Its last stage copies what another has made; secrets are mounted where they are used."""
    dockerfile = read("Dockerfile")
    last = dockerfile.rpartition("\nFROM ")[2]

    assert "USER 10001:10001" in last
    assert "pip" not in last
    assert "apt-get" not in last
    assert dockerfile.count("--mount=type=secret,id=ca_bundle") == 2
    assert set(re.findall(r"^ARG (\w+)", dockerfile, re.MULTILINE)) == {"PYTHON_IMAGE", "COMPILED"}
    assert read(".dockerignore").splitlines()[1] == "*"
