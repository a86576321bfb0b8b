"""What the router answers itself, and the reset of all caches.

| path | what it shows |
|---|---|
| `GET /health` | 200 if any pod is offered, else 503 |
| `GET /pods` | what is known of each pod |
| `GET /decisions?limit=100` | the last decisions, the newest first, and what came of them |
| `GET /decisions?since=N` | those whose requests ended after the N-th that did, in that order |
| `GET /decisions/ID` | those on the request of that id |
| `GET /metrics` | the router's part of the metric catalogue |

At most 1000 decisions are shown at once. A number in the query that is none, or out of bounds, is
refused: what would stand in its place is not what was asked for.
"""

from __future__ import annotations

import asyncio
import re
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, unquote_to_bytes

from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from kvbench.router.answers import answer_json, refuse, worded
from kvbench.router.fetch import Answer, fetch
from kvbench.router.journal import LONGEST_ID
from kvbench.router.paths import RESET

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvbench.http.server import Exchange
    from kvbench.records.decisions import Entry
    from kvbench.router.fleet import Fleet

_PAGES = frozenset({"health", "pods", "decisions", "metrics"})
_SHOWN = 100
_BOUNDS = {"limit": (1, 1000), "since": (0, 10**15 - 1)}


def is_page(path: str) -> bool:
    """Return whether the router answers a path itself, and no pod does."""
    return path.partition("/")[2].partition("/")[0] in _PAGES  # "*" is a path too


class Pages:
    """The pages of one router.

    Args:
        fleet: What they tell of.
        timeout_s: Seconds that a pod may take to reset its cache.
        read: Called before a scrape, to set what is read off.
        max_body: Bytes of a request's body.

    Attributes:
        ending: Whether the router is about to end, and so not to be sent any more.
    """

    def __init__(
        self, fleet: Fleet, timeout_s: float, read: Callable[[], None], max_body: int
    ) -> None:
        self._fleet = fleet
        self._read = read
        self._timeout_s = timeout_s
        self._too_large = (
            f"Request body too large: at most {max_body / 2**20:g} MiB are taken (--max-body)."
        )
        self.ending = False

    def show(self, exchange: Exchange) -> bool:
        """Answer, if the path is one of these; return whether it is."""
        fleet, now = self._fleet, self._fleet.now()
        match exchange.request.path.rstrip("/"):
            case "/health":
                if self.ending:
                    refuse(exchange, HTTPStatus.SERVICE_UNAVAILABLE, "The router is ending.")
                elif fleet.membership.offered(now):
                    exchange.respond(200, b"", None)
                else:
                    sentence = fleet.membership.why_nobody()
                    refuse(exchange, HTTPStatus.SERVICE_UNAVAILABLE, sentence)
            case "/pods":
                answer_json(exchange, {"pods": self.pods()})
            case "/decisions":
                self._decisions(exchange)
            case path if path.startswith("/decisions/"):
                found = self._decisions_on(exchange.request.head.target)
                if found:
                    answer_json(exchange, {"decisions": found})
                else:
                    self.refuse(exchange, HTTPStatus.NOT_FOUND, "No such decision is kept.")
            case "/metrics":
                self._read()
                exchange.respond(200, generate_latest(fleet.meters.registry), CONTENT_TYPE_LATEST)
            case _:
                return False
        return True

    def _decisions(self, exchange: Exchange) -> None:
        """Answer with the decisions that a query asks for."""
        journal, asked = self._fleet.account.journal, {"limit": _SHOWN, "since": -1}
        query = parse_qs(exchange.request.query, keep_blank_values=True)
        for name, (least, most) in _BOUNDS.items():
            for text in query.get(name, ()):
                if not re.fullmatch(r"[0-9]{1,15}", text) or not least <= int(text) <= most:
                    message = f"{name}: expected a number from {least} to {most}, got {text[:40]!r}"
                    self.refuse(exchange, HTTPStatus.BAD_REQUEST, message, name)
                    return
                asked[name] = int(text)
        since, most = asked["since"], asked["limit"]
        entries = journal.latest(most) if since < 0 else journal.since(since, most)
        answer_json(exchange, {"decisions": entries, "ended": journal.count})

    def _decisions_on(self, target: bytes) -> list[Entry]:
        """Return the decisions on a request, however its id is written in the target.

        It is kept as it came in its header, a character for each byte; in a target it stands as it
        is, or percent-encoded: those bytes, or the UTF-8 of those characters.
        """
        asked = target.partition(b"?")[0].partition(b"/decisions/")[2]
        raw = unquote_to_bytes(asked)
        forms = [raw.decode("latin-1"), raw.decode(errors="replace"), asked.decode("latin-1")]
        forms += [form.rstrip("/") for form in forms]
        found = (self._fleet.account.journal.of(form[:LONGEST_ID]) for form in forms)
        return next(filter(None, found), [])

    def pods(self) -> list[dict[str, object]]:
        """Return what is known of each pod."""
        fleet = self._fleet
        listing = fleet.membership.listing(fleet.now())
        return [
            {**entry, "models": fleet.models.of(name), "cache": self._cache(name)}
            for entry in listing
            for name in [str(entry["name"])]
        ]

    def _cache(self, pod: str) -> dict[str, object] | None:
        """Return what is known of a pod's cache; None where its events are not followed."""
        ledger = self._fleet.index.ledger
        if pod not in ledger.streams:
            return None
        holdings = ledger.holdings(pod)
        return {
            "trust": holdings.trust.level,
            "reason": holdings.trust.reason,
            "blocks": holdings.blocks,
            "orphans": holdings.parked,
        }

    def refuse(
        self, exchange: Exchange, status: HTTPStatus, message: str, param: str | None = None
    ) -> None:
        """Answer with an error, and count it."""
        self._fleet.meters.refusals.add(str(status.value))
        if status is HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            message = self._too_large
        refuse(exchange, status, message, param)

    def refusal(self, status: int, message: str) -> tuple[bytes, str]:
        """Return an error for what is refused before it is a request, and count it."""
        self._fleet.meters.refusals.add(str(status))
        too_large = status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE
        return worded(status, self._too_large if too_large else message)

    async def reset(self, exchange: Exchange) -> None:
        """Have all pods empty their prefix caches, and forget what they held."""
        fleet = self._fleet
        pods = list(fleet.membership.pods.values())
        answers = await asyncio.gather(
            *(
                fetch(fleet.pools[pod.name], pod.address, "POST", RESET, self._timeout_s)
                for pod in pods
            )
        )
        for pod, answer in zip(pods, answers, strict=True):
            fleet.forget(pod.name)
            if answer.status == HTTPStatus.OK and _agrees(answer):
                # An idle engine publishes that with its next step, and not before.
                fleet.index.ledger.emptied(pod.name)
        if all(answer.status == HTTPStatus.OK for answer in answers):
            answer_json(exchange, {"success": all(_agrees(answer) for answer in answers)})
            return
        troubles = "; ".join(
            f"{pod.name}: {answer.trouble or answer.status}"
            for pod, answer in zip(pods, answers, strict=True)
            if answer.status != HTTPStatus.OK
        )
        self.refuse(exchange, HTTPStatus.BAD_GATEWAY, f"Not every pod was reset: {troubles}.")


def _agrees(answer: Answer) -> bool:
    """Return whether a pod that answered 200 has done it; it may say otherwise in its body."""
    return b'"success":false' not in answer.body.replace(b" ", b"")
