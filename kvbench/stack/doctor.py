"""Examines running pods and routers: asks what `kvbench.stack.diagnosis` judges by.

Read: `/metrics`, `/v1/models`, `/version`, in dev mode `/server_info`, the model's configuration
where it is a directory of this machine or a known model; of a router its `/pods`. Asked, unless
told not to: the same prompt of two and a half blocks twice, of its own words and salt, one token
each. Heard: KV events, where an endpoint is given. Nothing is changed.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import urllib.error
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prometheus_client.parser import text_string_to_metric_families

from kvbench.engine.models import load_shape
from kvbench.errors import InputError, TargetError
from kvbench.http.address import parse_address
from kvbench.kvcache.ledger import Ledger
from kvbench.metrics import router
from kvbench.metrics.exposition import NonsenseError, buckets, read
from kvbench.stack.diagnosis import trained_window
from kvbench.stack.examined import WATCHED, Examined, SeenRouter
from kvbench.stack.probe import ask_twice
from kvbench.stack.target import fetch, model_cards
from kvbench.zmqfeed.sources import EventSource, parse_pod
from kvbench.zmqfeed.subscriber import Subscriber

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_AT_ONCE = 16
_CONNECT_S, _HEAR_S = 0.5, 3.0
_UNKNOWN_BLOCK = 128
_FIRST_TOKEN = 100  # ids from here on are plain tokens in every vocabulary


@dataclass(frozen=True, slots=True)
class Examination:
    """What was found.

    Attributes:
        pods: The pods, those behind routers included, each once.
        routers: The routers, each once.
    """

    pods: list[Examined]
    routers: list[SeenRouter]


@dataclass(frozen=True, slots=True)
class _Patient:
    """A pod to be examined: where it is, where its events are, and what a router says of it."""

    name: str
    url: str
    source: EventSource | None
    unhealthy: str | None = None
    draining: bool = False


def examine(
    targets: Sequence[str],
    *,
    utc: Callable[[], float],
    config: Path | None = None,
    probe: bool = True,
) -> Examination:
    """Examine pods, routers, and the pods behind them.

    Args:
        targets: URLs of pods or routers; pods may be given as `--pod` takes them.
        utc: Calendar seconds, as pods have them.
        config: The model's `config.json` or its directory, where pods do not say.
        probe: Whether to ask for an answer.

    Raises:
        InputError: A target is no URL, or the configuration cannot be read.
    """
    given = None if config is None else _configuration(config)
    routers: dict[str, SeenRouter] = {}
    patients = _each_once([p for target in targets for p in _patients(target, routers)])
    pods = asyncio.run(_examine(patients, utc, given, probe=probe))
    return Examination(pods, list(routers.values()))


async def _examine(
    patients: Sequence[_Patient],
    utc: Callable[[], float],
    config: Mapping[str, object] | None,
    *,
    probe: bool,
) -> list[Examined]:
    """Listen, ask, and note what was heard."""
    ledger = Ledger(utc)
    subscriber = Subscriber(ledger)
    loop = asyncio.get_running_loop()
    try:
        followed = [p for p in patients if p.source is not None and _follow(subscriber, p)]
        if followed:
            await asyncio.sleep(_CONNECT_S)
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            asked = [loop.run_in_executor(pool, _look, p, config, probe) for p in patients]
            found = list(await asyncio.gather(*asked))
        until = loop.time() + (_HEAR_S if followed else 0.0)
        while loop.time() < until and not all(_heard(ledger, p.name) for p in followed):
            subscriber.sweep()
            await asyncio.sleep(0.05)
        for patient, pod in zip(patients, found, strict=True):
            if patient.source is not None:
                pod.events = "heard" if _heard(ledger, patient.name) else "silent"
                pod.event_block = ledger.block_size([patient.name])
        return found
    finally:
        subscriber.close()


def _follow(subscriber: Subscriber, patient: _Patient) -> bool:
    """Begin to listen; an endpoint that cannot be had is one that is silent."""
    assert patient.source is not None
    try:
        subscriber.follow(patient.name, patient.source)
    except TargetError:
        return False
    return True


def _heard(ledger: Ledger, name: str) -> bool:
    """Return whether a pod's events have come."""
    return any(stream.batches for stream in ledger.streams.get(name, ()))


def _patients(target: str, routers: dict[str, SeenRouter]) -> list[_Patient]:
    """Return the pods that a target stands for; add it to the routers if it is one.

    Raises:
        InputError: It is no URL.
    """
    given = _patient(target)
    listing = _json(f"{given.url}/pods")
    pods = listing.get("pods") if isinstance(listing, dict) else None
    if not isinstance(pods, list) or not all(isinstance(pod, dict) for pod in pods):
        return [given]
    routers.setdefault(given.name, _seen_router(given.name, given.url))
    patients = []
    for pod in pods:
        draining, trouble = bool(pod.get("draining")), pod.get("trouble")
        if pod.get("healthy", True) or (draining and not trouble):
            unhealthy = None
        else:
            unhealthy = str(trouble or "no reason given")
        patient = _patient(str(pod.get("pod") or pod.get("url")))
        patients.append(replace(patient, unhealthy=unhealthy, draining=draining))
    return patients


def _patient(text: str) -> _Patient:
    """Return a pod as the command line takes them.

    Raises:
        InputError: It is none; the message names the argument.
    """
    try:
        url, source = parse_pod(text)
        address = parse_address(url.rstrip("/").removesuffix("/v1"))
    except InputError as error:
        hint = error.hint
        if "://" not in text.partition(",")[0]:
            hint = f"put the scheme in front: http://{text}"
        message = error.message.replace("--pod", "URL", 1)
        raise InputError(message, hint=hint and hint.replace("--pod ", "")) from None
    return _Patient(address.name + address.base, address.url, source)


def _each_once(patients: Sequence[_Patient]) -> list[_Patient]:
    """Return each pod once, with all that is known of it: it may be given and behind routers."""
    once: dict[str, _Patient] = {}
    for patient in patients:
        key = patient.name.replace("localhost:", "127.0.0.1:")
        known = once.setdefault(key, patient)
        once[key] = replace(
            known,
            source=known.source or patient.source,
            unhealthy=known.unhealthy or patient.unhealthy,
            draining=known.draining or patient.draining,
        )
    return list(once.values())


def _seen_router(name: str, url: str) -> SeenRouter:
    """Return what a router says of itself; one that says nothing is well."""
    trust: dict[str, str] = {}
    known: dict[str, bool] = {}
    try:
        families = list(text_string_to_metric_families((_body(f"{url}/metrics") or b"").decode()))
    except (TargetError, ValueError):
        families = []
    for sample in (sample for family in families for sample in family.samples):
        if sample.name == router.EVENTS_TRUST.name and sample.value:
            trust[sample.labels.get("pod", "")] = sample.labels.get("level", "")
        elif sample.name == router.TOKENS_KNOWN.name:
            known[sample.labels.get("model", "")] = bool(sample.value)
    return SeenRouter(name, trust, known)


def _look(patient: _Patient, config: Mapping[str, object] | None, probe: bool) -> Examined:
    """Examine one pod."""
    pod = Examined(
        patient.name, patient.url, unhealthy=patient.unhealthy, draining=patient.draining
    )
    try:
        exposition = _body(f"{pod.url}/metrics") or b""
    except TargetError as error:
        pod.trouble = error.message
        return pod
    try:
        pod.reading = read(exposition)
    except NonsenseError:
        pod.reading = None
    pod.bounds = {quantity.word: buckets(exposition, quantity) for quantity in WATCHED}
    try:
        cards = model_cards(pod.url)
    except TargetError as error:
        if pod.reading is None:
            pod.trouble = error.message
            return pod
        cards = []  # an engine by its metrics, which need no key
    _look_at_model(pod, cards[0] if cards else {}, config)
    version = _json(f"{pod.url}/version")
    pod.version = str(version.get("version", "")) if isinstance(version, dict) else ""
    info = _json(f"{pod.url}/server_info?config_format=json")
    if isinstance(info, dict):
        settings = info.get("vllm_config")
        events = settings.get("kv_events_config") if isinstance(settings, dict) else None
        enabled = isinstance(events, dict) and events.get("enable_kv_cache_events")
        pod.events = "unknown" if enabled else "off"
    if probe and pod.model:
        _probe(pod)
    return pod


def _look_at_model(
    pod: Examined, card: Mapping[str, Any], config: Mapping[str, object] | None
) -> None:
    """Note what a pod serves, and what that was made for."""
    pod.model = str(card.get("id", pod.reading.model if pod.reading else ""))
    window = card.get("max_model_len")
    pod.window = window if isinstance(window, int) else None
    if pod.window is None and pod.reading is not None:
        pod.window = pod.reading.window_tokens
    root = str(card.get("root") or pod.model)
    try:
        shape = load_shape(root)
    except InputError:
        shape = None
    if shape is not None:
        pod.trained = shape.max_model_len
        heads = 1 if shape.latent else shape.kv_heads
        pod.kv_bytes_per_token = len(shape.windows) * heads * shape.numbers_per_head * 2  # 16 bits
    held = pod.reading.capacity_bytes if pod.reading else None
    if held and pod.reading and pod.reading.capacity_tokens:
        pod.kv_bytes_per_token = round(held / pod.reading.capacity_tokens)
    directory = Path(root)
    if config is None and directory.is_dir():
        try:
            config = _configuration(directory)
        except InputError:
            config = None
    if config is not None:
        pod.trained = trained_window(config) or pod.trained


def _probe(pod: Examined) -> None:
    """Ask a pod the same twice; note what it says was cached."""
    block = (pod.reading.block_tokens if pod.reading else None) or _UNKNOWN_BLOCK
    tokens = min(2 * block + block // 2, (pod.window or 4096) * 3 // 4)
    words = secrets.SystemRandom().choices(range(_FIRST_TOKEN, _FIRST_TOKEN + 100), k=tokens)
    body = {"model": pod.model, "prompt": words, "max_tokens": 1, "temperature": 0}
    said = ask_twice(pod.name, f"{pod.url}/v1/completions", body)
    if said.trouble is None:
        pod.told, pod.cached = said.told, said.cached_tokens


def _configuration(path: Path) -> Mapping[str, object]:
    """Return a model's configuration.

    Raises:
        InputError: It cannot be read.
    """
    path = path / "config.json" if path.is_dir() else path
    try:
        config = json.loads(path.read_bytes())
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from None
    except ValueError as error:
        raise InputError(f"not JSON: {error}", where=str(path)) from None
    if not isinstance(config, dict):
        raise InputError("expected a JSON object", where=str(path))
    return config


def _body(url: str) -> bytes | None:
    """Return what a URL answers with 200, None for other answers."""
    try:
        return fetch(url)
    except urllib.error.HTTPError as error:
        error.close()
        return None


def _json(url: str) -> Any:
    """Return what a URL answers, parsed; None if it does not answer or is no JSON."""
    try:
        return json.loads(_body(url) or b"null")
    except (ValueError, TargetError):
        return None
