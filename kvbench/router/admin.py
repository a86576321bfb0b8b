"""The admin API: pods come and go by hand. On a port of its own, on loopback.

| request | what it does |
|---|---|
| `GET /pods` | what is known of each pod, and of where pods come from |
| `POST /pods` with `{"url": "http://10.0.0.7:8000"}` | adds a pod, also one that was removed |
| `POST /pods/NAME/drain` | sends it no more requests; those that it has end |
| `POST /pods/NAME/resume` | takes that back |
| `DELETE /pods/NAME` | removes it: it gets no more requests, and those that it has end |
| `POST /reset_prefix_cache`, `GET /health`, `GET /metrics` | as on the other port |

NAME is what `GET /pods` calls it, host:port. All errors are OpenAI's in form.

A page in a browser can send requests to any port of the machine that the browser runs on, but not
without an `origin` header, or else under a name of its own. Both are refused: no page may send
clients' prompts elsewhere.
"""

from __future__ import annotations

import logging
import re
from http import HTTPStatus
from typing import TYPE_CHECKING

import msgspec

from kvbench.errors import InputError
from kvbench.router.answers import answer_json, refuse
from kvbench.router.paths import RESET

if TYPE_CHECKING:
    from kvbench.http.server import Exchange
    from kvbench.router.service import Router


logger = logging.getLogger(__name__)

_HERE = frozenset({b"127.0.0.1", b"localhost", b"[::1]"})
_PORT = re.compile(rb":\d*$")


class _Added(msgspec.Struct, forbid_unknown_fields=True):
    url: str


class Admin:
    """Answers on the admin port."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._pages = router.pages

    def handle(self, exchange: Exchange) -> None:
        """Answer one request."""
        request = exchange.request
        method, path = request.method, request.path.rstrip("/")
        host = _PORT.sub(b"", request.head.named.get(b"host", b"")).lower()
        if b"origin" in request.head.named or host not in _HERE:
            refuse(exchange, HTTPStatus.FORBIDDEN, "Not from a page in a browser.")
        elif path == "/pods" and method == "POST":
            self._add(exchange)
        elif path == "/pods" and method == "GET":
            sources = self._router.sources.listing()
            answer_json(exchange, {"pods": self._pages.pods(), "sources": sources})
        elif path.startswith("/pods/"):
            self._change(exchange, method, path.removeprefix("/pods/"))
        elif path == RESET and method == "POST":
            self._router.intake.reset(exchange)
        elif method not in {"GET", "HEAD"} or not self._pages.show(exchange):
            refuse(exchange, HTTPStatus.NOT_FOUND, f"There is no {method} {path}.")

    def _add(self, exchange: Exchange) -> None:
        """Add a pod."""
        roster = self._router.sources.roster
        try:
            url = msgspec.json.decode(exchange.request.body, type=_Added).url
            there = set(roster.wanted())
            name = roster.add(url)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            message = f'Expected {{"url": "http://HOST:PORT"}}: {error}'
            refuse(exchange, HTTPStatus.BAD_REQUEST, message)
        except InputError as error:
            message = error.message.replace("--pod: ", "")
            refuse(exchange, HTTPStatus.BAD_REQUEST, message, "url")
        else:
            self._router.gather_pods()
            status = HTTPStatus.OK if name in there else HTTPStatus.CREATED
            answer_json(exchange, self._entry(name), status)

    def _change(self, exchange: Exchange, method: str, target: str) -> None:
        """Drain, resume or remove a pod."""
        name, _, verb = target.partition("/")
        membership = self._router.fleet.membership
        if name not in membership.pods:
            message = f"There is no pod {name}."
            refuse(exchange, HTTPStatus.NOT_FOUND, message)
            return
        match method, verb:
            case "POST", "drain" | "resume":
                membership.drain(name, draining=verb == "drain")
                logger.info("%s: %s, by the admin API", name, verb)
                answer_json(exchange, self._entry(name))
            case "DELETE", "":
                entry = self._entry(name)
                self._router.sources.roster.remove(name)
                self._router.gather_pods()
                answer_json(exchange, {**entry, "removed": True})
            case _:
                message = f"Expected POST /pods/{name}/drain or …/resume, or DELETE /pods/{name}."
                refuse(exchange, HTTPStatus.METHOD_NOT_ALLOWED, message)

    def _entry(self, name: str) -> dict[str, object]:
        """Return what is known of a pod."""
        return next(entry for entry in self._pages.pods() if entry["name"] == name)
