"""What is at the other end: a look at a target before and after it is measured.

A target is a pod (anything that speaks OpenAI's API) or kvbench's router, which lists its pods at
`/pods`. What a target does not say stays None: nothing is assumed in its name.
"""

from __future__ import annotations

import http.client
import json
import os
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from kvbench.errors import InputError, TargetError
from kvbench.metrics import engines
from kvbench.metrics.exposition import NonsenseError, read

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kvbench.metrics.exposition import Reading

TIMEOUT_SECONDS = 10.0
DEFAULT_BLOCK_SIZE = 16
"""Tokens per KV block, where a target does not say: vLLM's default on GPUs."""
_WITHOUT_KEY = frozenset({401, 403})
MAX_BODY = 16 * 1024 * 1024
"""No answer that is read here is longer; an endless one must not fill the memory."""


@dataclass(frozen=True, slots=True)
class Target:
    """What a target says about itself.

    Attributes:
        url: Base URL, without a trailing slash.
        model: The model to ask for.
        root: Where the model comes from, as the server tells it: a name or a directory.
        max_model_len: Tokens of its window.
        pods: URL by name of each pod; the target itself where it is no router.
        block_size: Tokens per KV block, where all pods say the same.
        routed: Whether it is kvbench's router.
    """

    url: str
    model: str
    root: str | None
    max_model_len: int | None
    pods: Mapping[str, str]
    block_size: int | None
    routed: bool


def check_url(url: str) -> str:
    """Return `url` without a trailing slash or `/v1`.

    Raises:
        InputError: It is no http(s) URL with a host.
    """
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise InputError(
            f"--target: expected a URL such as http://127.0.0.1:8000, got {url!r}",
            hint="start pods and a router with `kvbench up`, and pass the URL that it prints",
        )
    return url.rstrip("/").removesuffix("/v1")


def fetch(url: str, *, body: object = None, timeout: float = TIMEOUT_SECONDS) -> bytes:
    """GET `url`, or POST `body` as JSON, and return what comes back.

    Raises:
        urllib.error.HTTPError: It answered with 4xx or 5xx.
        TargetError: It did not answer.
    """
    headers = {"content-type": "application/json"}
    if key := os.environ.get("OPENAI_API_KEY"):
        headers["authorization"] = f"Bearer {key}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers=headers)  # noqa: S310 - checked URL
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:  # noqa: S310
            answer: bytes = response.read(MAX_BODY)
            return answer
    except urllib.error.HTTPError:
        raise
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        parts = urlsplit(url)
        raise TargetError(
            f"{parts.scheme}://{parts.netloc} does not answer: {reason}",
            hint="is it running, and is this the right port? `kvbench up` starts a stack and "
            "prints its URL",
        ) from None


def _json(url: str) -> Any:
    try:
        return json.loads(fetch(url))
    except urllib.error.HTTPError as error:
        with error:
            return None
    except ValueError:
        return None


def model_cards(url: str) -> list[dict[str, Any]]:
    """Return what a target says of each of its models; each has an `id`.

    Raises:
        TargetError: It does not answer, or not as an OpenAI API does.
    """
    try:
        listing = json.loads(fetch(f"{url}/v1/models"))
    except urllib.error.HTTPError as error:
        with error:
            if error.code in _WITHOUT_KEY:
                raise TargetError(
                    f"{url}/v1/models answered {error.code}: it wants an API key that it knows",
                    hint="put the key into the variable OPENAI_API_KEY",
                ) from None
        listing = None
    except ValueError:
        listing = None
    cards = listing.get("data") if isinstance(listing, dict) else None
    if not isinstance(cards, list) or not all(isinstance(c, dict) and "id" in c for c in cards):
        raise TargetError(
            f"{url}/v1/models does not list models, so this is no OpenAI-compatible server",
            hint="pass the base URL of a vLLM pod or of a kvbench router",
        )
    return cards


def look_at(url: str, model: str | None = None) -> Target:
    """Ask a target what it serves.

    Raises:
        InputError: `model` is not among its models, or `url` is none.
        TargetError: It does not answer, or not as an OpenAI API does.
    """
    url = check_url(url)
    cards = model_cards(url)
    names = [str(card["id"]) for card in cards]
    if not names:
        raise TargetError(f"{url} serves no model", hint="is one of its pods up?")
    if model is not None and model not in names:
        raise InputError(f"--model: {url} has no model {model!r}; it has {', '.join(names)}")
    card = cards[names.index(model) if model else 0]
    pods = _pods(url)
    return Target(
        url=url,
        model=str(card["id"]),
        root=card.get("root"),
        max_model_len=card.get("max_model_len"),
        pods=pods or {urlsplit(url).netloc: url},
        block_size=_block_size((pods or {"": url}).values()),
        routed=pods is not None,
    )


def _pods(url: str) -> dict[str, str] | None:
    listing = _json(f"{url}/pods")
    pods = listing.get("pods") if isinstance(listing, dict) else None
    if not isinstance(pods, list):
        return None
    return {str(pod["name"]): str(pod["url"]).rstrip("/") for pod in pods}


def _reading(url: str) -> Reading | None:
    """Return what an engine says at its `/metrics`; None if there is none, or nothing of it."""
    try:
        return read(fetch(f"{url}/metrics"))
    except urllib.error.HTTPError as error:
        with error:
            return None
    except (TargetError, NonsenseError):
        return None


def _block_size(urls: Iterable[str]) -> int | None:
    sizes = {reading.block_tokens for url in urls if (reading := _reading(url)) is not None}
    return sizes.pop() if len(sizes - {None}) == len(sizes) == 1 else None


def cache_counters(pods: Mapping[str, str]) -> dict[str, dict[str, float]]:
    """Return each pod's prefix-cache counters, in tokens: {"queries": …, "hits": …}.

    A pod that does not expose them is left out.
    """
    counters = {}
    for name, url in pods.items():
        reading = _reading(url)
        if reading is None:
            continue
        queries, hits = reading.get(engines.QUERIES), reading.get(engines.HITS)
        if queries is not None and hits is not None:
            counters[name] = {"queries": queries, "hits": hits}
    return counters


def prefix_caching(pods: Mapping[str, str]) -> dict[str, bool]:
    """Return for each pod whether it keeps blocks for reuse; one that does not say is left out."""
    switches = {}
    for name, url in pods.items():
        reading = _reading(url)
        said = None if reading is None else reading.setting("enable_prefix_caching")
        if said in {"True", "False"}:
            switches[name] = said == "True"
    return switches


def tokenize(target: Target, what: Mapping[str, object]) -> list[int] | None:
    """Return what the target's own tokenizer makes of a prompt or of messages.

    Args:
        target: The target.
        what: The fields of vLLM's `/tokenize` beside the model.

    Returns:
        Token ids; None where the target has no such endpoint, or refuses.
    """
    try:
        answer = json.loads(fetch(f"{target.url}/tokenize", body={"model": target.model, **what}))
        tokens = answer["tokens"]
    except urllib.error.HTTPError as error:
        with error:
            return None
    except (TargetError, ValueError, KeyError, TypeError):
        return None
    whole = isinstance(tokens, list) and all(isinstance(token, int) for token in tokens)
    return tokens if whole else None


def reset_caches(target: Target) -> None:
    """Empty the prefix cache of every pod of the target.

    Raises:
        TargetError: One would not: it has the endpoint only in dev mode, or blocks are in use.
    """
    try:
        answer = fetch(f"{target.url}/reset_prefix_cache", body={})
    except urllib.error.HTTPError as error:
        with error:
            raise TargetError(
                f"{target.url}/reset_prefix_cache answered {error.code}",
                hint="a vLLM pod has it only with VLLM_SERVER_DEV_MODE=1; without it, leave "
                "--isolation at `salt`, which needs nothing from the server",
            ) from None
    if b'"success":false' in answer.replace(b" ", b""):
        raise TargetError(
            f"{target.url}/reset_prefix_cache could not: blocks are in use",
            hint="wait until the target is idle",
        )
