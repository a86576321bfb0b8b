"""What is asked of a pod once, when it is met: how its tokens are made, how large its cache is.

Its tokenizer is read from this machine, and two probes of the pod's own `/tokenize` say whether it
is the same, two more whether it lays out tools as we do, and how it hands contents to its template;
a pod that does not serve that path is believed until its counts differ. That is asked
of pods that tell of their caches, for only with those exact tokens are of use.

How large a pod's cache is, policies would have to learn, and shadow policies have virtual pods of
that size. It is asked anew each time: a pod may have come back with another.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import TYPE_CHECKING

import msgspec

from kvbench.metrics.exposition import cache_tokens
from kvbench.router.fetch import fetch
from kvbench.text.agreement import (
    PROBE_CALLS,
    PROBE_CHAT,
    PROBE_PARTS,
    PROBE_TEXT,
    PROBE_TOOLS,
    text_difference,
)

if TYPE_CHECKING:
    from kvbench.router.fleet import Fleet
    from kvbench.router.membership import Pod
    from kvbench.router.model_tokens import ModelTokens
    from kvbench.router.models import Entry


class _Tokens(msgspec.Struct):
    tokens: list[int]


async def introduce(fleet: Fleet, pod: Pod, models: dict[str, Entry], timeout_s: float) -> None:
    """Get to know a pod, and the models of its that are not known yet."""
    if pod.name in fleet.index.ledger.streams and not fleet.tokens.knows(models):
        loop = asyncio.get_running_loop()
        for model in await loop.run_in_executor(None, fleet.tokens.learn, models):
            difference = await _difference(fleet, pod, model, timeout_s)
            if difference is not None:
                model.distrust(difference)
            elif model.tokenizer.has_chat_template:
                await _meet(fleet, pod, model, timeout_s)
    answer = await fetch(fleet.pools[pod.name], pod.address, "GET", "/metrics", timeout_s)
    if answer.status == HTTPStatus.OK and pod.name in fleet.membership.pods:
        fleet.sized(pod.name, cache_tokens(answer.body))


async def _difference(fleet: Fleet, pod: Pod, model: ModelTokens, timeout_s: float) -> str | None:
    """Return how a pod's tokens differ from ours, None if they do not or it does not say."""
    text = {"model": model.name, "prompt": PROBE_TEXT}
    chat = {"model": model.name, "messages": list(PROBE_CHAT)}
    theirs = await _tokens(fleet, pod, msgspec.json.encode(text), timeout_s)
    difference = None if theirs is None else text_difference(model.tokenizer, theirs)
    if difference is None and model.tokenizer.has_chat_template:
        theirs = await _tokens(fleet, pod, msgspec.json.encode(chat), timeout_s)
        difference = None if theirs is None else model.difference(theirs)
    return difference


async def _meet(fleet: Fleet, pod: Pod, model: ModelTokens, timeout_s: float) -> None:
    """Have a model shown how a pod lays out tools, and contents of several parts."""
    for messages, tools in ((PROBE_PARTS, None), (PROBE_CALLS, PROBE_TOOLS)):
        body = msgspec.json.encode({"model": model.name, "messages": messages, "tools": tools})
        theirs = await _tokens(fleet, pod, body, timeout_s)
        if theirs is not None:
            model.met(body, theirs)


async def _tokens(fleet: Fleet, pod: Pod, body: bytes, timeout_s: float) -> list[int] | None:
    """Return what a pod's `/tokenize` makes of a body; None: it does not say."""
    answer = await fetch(
        fleet.pools[pod.name], pod.address, "POST", "/tokenize", timeout_s, body=body
    )
    if answer.status != HTTPStatus.OK:
        return None
    try:
        return msgspec.json.decode(answer.body, type=_Tokens).tokens
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
