"""Asks a target what `kvbench.stack.preflight` decides by: a few small requests before a run.

Each pod gets the same prompt of its own twice, directly, so that no router spreads the two. The
prompt's words and the cache salt are the probe's own: it hits nothing, and nothing will hit it.
Metrics are read after it, so that what it costs is in no counter of the run.
"""

from __future__ import annotations

import urllib.error
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from kvbench.errors import TargetError
from kvbench.openai.wire import DecodeError, parse
from kvbench.stack.preflight import PodSays, Seen
from kvbench.stack.target import fetch, prefix_caching, tokenize
from kvbench.text.agreement import PROBE_CHAT, PROBE_TEXT, chat_difference, text_difference
from kvbench.text.compose import Composer

if TYPE_CHECKING:
    from kvbench.stack.target import Target
    from kvbench.text.tokenizer import Tokenizer
    from kvbench.workload.plan import Api

TIMEOUT_SECONDS = 60.0
"""How long a pod may take: it may have work, or a model to warm up."""

_UNKNOWN_BLOCK = 128  # tokens: large enough for most where a pod does not say its block size
_AT_ONCE = 16  # pods


def probe(
    target: Target, tokenizer: Tokenizer, api: Api, *, name: str, salted: bool = True
) -> Seen:
    """Ask the target.

    Args:
        target: The target.
        tokenizer: What the run is planned with.
        api: The endpoint that the run will use.
        name: Names this probe among all: words and salt are made of it.
        salted: Whether to send `cache_salt`, which some servers refuse.
    """
    prompt = _prompt(target, tokenizer, name)
    body: dict[str, object] = {"model": target.model, "max_tokens": 1, "temperature": 0}
    body |= (
        {"prompt": prompt}
        if api == "completions"
        else {"messages": [{"role": "user", "content": prompt}]}
    )
    if salted:
        body["cache_salt"] = name
    path = "/v1/chat/completions" if api == "chat" else "/v1/completions"
    with ThreadPoolExecutor(min(len(target.pods), _AT_ONCE)) as pool:
        asked = [pool.submit(ask_twice, pod, url + path, body) for pod, url in target.pods.items()]
        said = [answer.result() for answer in asked]
    switches = prefix_caching(target.pods)
    pods = [replace(pod, caching=switches.get(pod.pod)) for pod in said]
    differences = _differences(target, tokenizer, api)
    return Seen(target.max_model_len, differences is not None, differences or (), pods)


def _prompt(target: Target, tokenizer: Tokenizer, name: str) -> str:
    """Return words of two blocks and a half, but no more than the window holds."""
    block = target.block_size or _UNKNOWN_BLOCK
    tokens = min(2 * block + block // 2, (target.max_model_len or 4096) * 3 // 4)
    return Composer(tokenizer, 0).text(name, max(1, tokens))


def ask_twice(pod: str, url: str, body: dict[str, object]) -> PodSays:
    """Send a request twice, and return what the second answer says."""
    try:
        fetch(url, body=body, timeout=TIMEOUT_SECONDS)
        usage = parse(fetch(url, body=body, timeout=TIMEOUT_SECONDS)).usage
    except urllib.error.HTTPError as error:
        with error:
            said = error.read(2000).decode(errors="replace")
        return PodSays(pod, trouble=f"{error.code} {_sentence(said)}")
    except TargetError as error:
        return PodSays(pod, trouble=error.message)
    except DecodeError as error:
        return PodSays(pod, trouble=f"its answer cannot be read: {error}")
    told = None if usage is None else usage.cached_tokens
    prompt_tokens = None if usage is None else usage.prompt_tokens
    return PodSays(pod, told=told is not None, cached_tokens=told or 0, prompt_tokens=prompt_tokens)


def _sentence(said: str) -> str:
    """Return the sentence in an error's body."""
    try:
        return parse(said.encode()).error_message or said
    except DecodeError:
        return said.strip()


def _differences(target: Target, tokenizer: Tokenizer, api: Api) -> list[str] | None:
    """Return how the server's tokens differ from ours; None where it has no `/tokenize`."""
    theirs = tokenize(target, {"prompt": PROBE_TEXT, "add_special_tokens": False})
    if theirs is None:
        return None
    if (difference := text_difference(tokenizer, theirs)) is not None:
        return [difference]
    if api == "chat" and tokenizer.has_chat_template:
        theirs = tokenize(target, {"messages": list(PROBE_CHAT), "add_generation_prompt": True})
        if theirs is not None and (difference := chat_difference(tokenizer, theirs)) is not None:
            return [difference]
    return []
