"""Each pod asked again and again: is it well, how much has it to do, which models does it serve?

A pod that was not well is asked for its models anew: it may have come back as another. One that was
restarted between two probes is known by when its process began, and holds nothing. Requests
that wait at one that is down and answers nobody, as it sleeps or is gone without a word, are sent
to others; so are none that it has begun to answer, and none where there is no other. One that
listens no more is not silent: it may be ending what it has, and if it is dead, connections break.
"""

from __future__ import annotations

import asyncio
import logging
import math
from http import HTTPStatus
from typing import TYPE_CHECKING

from kvbench.metrics.exposition import began, under_way, wakefulness
from kvbench.router.fetch import fetch
from kvbench.router.introduction import introduce
from kvbench.router.models import read_models

if TYPE_CHECKING:
    from kvbench.router.fetch import Answer
    from kvbench.router.fleet import Fleet
    from kvbench.router.membership import Pod

logger = logging.getLogger(__name__)

_MODELS_EVERY_S = 10.0
_WELL = frozenset({HTTPStatus.OK, HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})


async def probe_for_ever(fleet: Fleet, pod: Pod, every_s: float, timeout_s: float) -> None:
    """Ask a pod until cancelled.

    Args:
        fleet: What is told.
        pod: Who is asked.
        every_s: Seconds between two probes.
        timeout_s: Seconds that an answer may take.
    """
    models_due = -math.inf
    while True:
        mark = fleet.others.asked(pod)  # before the pod's health is: it may count a little late
        well = await _probe(fleet, pod, mark, timeout_s)
        now = fleet.now()
        if not well:
            models_due = -math.inf
        elif now >= models_due or fleet.models.doubted(pod.name):
            await _ask_models(fleet, pod, timeout_s)
            models_due = now + _MODELS_EVERY_S
        await asyncio.sleep(every_s)


async def _probe(fleet: Fleet, pod: Pod, mark: int, timeout_s: float) -> bool:
    """Ask a pod for its health, and what it has to do; return whether it is well."""
    pool = fleet.pools[pod.name]
    path = "/health"
    answer = await fetch(pool, pod.address, "GET", path, timeout_s)
    if answer.status == HTTPStatus.NOT_FOUND:  # OpenAI's API has no such path
        path = "/v1/models"
        answer = await fetch(pool, pod.address, "GET", path, timeout_s)
    said = b""
    if answer.status == HTTPStatus.OK:
        load = await fetch(pool, pod.address, "GET", "/metrics", timeout_s)
        said = load.body if load.status == HTTPStatus.OK else b""
    fleet.others.heard(pod, mark, under_way(said))
    _recognise(fleet, pod, began(said))
    return _judge(fleet, pod, path, answer, wakefulness(said))


def _judge(fleet: Fleet, pod: Pod, path: str, answer: Answer, state: str) -> bool:
    """Take note of a pod's health, as a path tells it; return whether it is well.

    One that wants to know who asks is there to ask. One that sleeps answers that it is well, takes
    requests, and leaves them waiting until it is woken.
    """
    why = answer.trouble
    loop = answer.status == HTTPStatus.LOOP_DETECTED
    if loop:
        why = "is this router itself, or leads back to it: take it out"
    elif why is None and answer.status not in _WELL:
        why = f"{pod.address.base}{path} answered {answer.status}"
    elif why is None and state != "awake":
        why = f"is {state}: it has to be woken (POST /wake_up there)"
    was_down, met = pod.down, pod.met
    certain = answer.refused or loop or state != "awake"
    fleet.membership.probed(pod, why, refused=certain)
    if answer.refused or state == "asleep":
        fleet.forget(pod.name)
    if state == "asleep":
        fleet.index.ledger.emptied(pod.name)  # it publishes that with its next step, once awake
    if pod.down != was_down:
        if pod.down:
            logger.warning("%s is down: %s", pod.name, why)
        else:
            logger.info("%s is up%s", pod.name, " again" if met else "")
    silent = answer.trouble is not None and not answer.refused  # who listens no more may be ending
    if pod.down and why is not None and (silent or state != "awake"):
        for forwarding in tuple(fleet.under_way):
            forwarding.leave(pod, why)
    return why is None


def _recognise(fleet: Fleet, pod: Pod, moment: float | None) -> None:
    """Forget what a pod held if its process is another one than before: it began later.

    Its events may have said so before, and what it has stored since: that is known then.
    """
    streams = fleet.index.ledger.streams.get(pod.name, ())
    restarts = sum(stream.feed.restarts for stream in streams)
    if moment is not None and 0 < pod.began < moment and restarts == pod.restarts:
        logger.info("%s has begun anew: what it held is forgotten", pod.name)
        fleet.forget(pod.name)
        fleet.index.ledger.emptied(pod.name)
    pod.began = max(pod.began, moment or 0.0)
    pod.restarts = restarts


async def _ask_models(fleet: Fleet, pod: Pod, timeout_s: float) -> None:
    """Ask a pod for its models; one that does not say keeps those that it had."""
    answer = await fetch(fleet.pools[pod.name], pod.address, "GET", "/v1/models", timeout_s)
    models = read_models(answer.body) if answer.status == HTTPStatus.OK else None
    if fleet.models.learned(pod.name, models):
        level = logging.INFO if models else logging.WARNING
        logger.log(level, "%s now serves %s", pod.name, ", ".join(models or ()) or "no model")
    await introduce(fleet, pod, models or {}, timeout_s)
