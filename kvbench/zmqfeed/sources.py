"""Where a pod's KV events come from, as it stands behind the pod's URL on the command line.

    --pod http://10.0.0.7:8000,events=tcp://10.0.0.7:5557,replay=tcp://10.0.0.7:5558

| key | meaning |
|---|---|
| `events` | endpoint of the pod's PUB socket; with a `*` it is bound, and the pod dials out |
| `replay` | endpoint of its ROUTER socket, which gives lost batches again: without it losses last |
| `topic` | only what is published under it; needed where several pods dial the same endpoint |
| `ranks` | data-parallel ranks: rank *n* publishes on the port *n* further on, as vLLM has it |

A URL alone has no events: its pod is scored by estimate.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit

from kvbench.errors import InputError

_FORM = "--pod http://127.0.0.1:8000,events=tcp://127.0.0.1:5557,replay=tcp://127.0.0.1:5558"
_KEYS = ("events", "replay", "topic", "ranks")
_TRANSPORTS = ("tcp://", "ipc://")
_MOST_RANKS = 1024


@dataclass(frozen=True, slots=True)
class EventSource:
    """Where the KV events of a pod, or of one rank of it, come from.

    Attributes:
        events: Endpoint of its publisher.
        replay: Endpoint that gives batches again; None if there is none.
        topic: What to listen to; "" is everything.
        ranks: How many publishers there are, on ports that follow each other.
    """

    events: str
    replay: str | None = None
    topic: str = ""
    ranks: int = 1

    @property
    def bound(self) -> bool:
        """Whether the endpoint is bound, and the pod dials out."""
        return "*" in self.events

    @property
    def by_name(self) -> bool:
        """Whether a name server has to be asked where it is."""
        return any(map(_has_name, (self.events, self.replay or "")))

    def beside(self, url: str) -> str:
        """Return a pod's URL with this source, as `--pod` takes them."""
        given = {"events": self.events, "replay": self.replay, "topic": self.topic}
        words = [f"{key}={value}" for key, value in given.items() if value]
        return ",".join([url, *words, *([f"ranks={self.ranks}"] if self.ranks > 1 else [])])

    def of_rank(self, rank: int) -> EventSource:
        """Return where one rank publishes."""
        replay = None if self.replay is None else _offset(self.replay, rank)
        return EventSource(_offset(self.events, rank), replay, self.topic)


def parse_pod(text: str) -> tuple[str, EventSource | None]:
    """Return the URL of a pod, and the source of its events if one is given.

    Raises:
        InputError: A key is unknown or its value makes no sense. The URL is not looked at.
    """
    url, *rest = text.split(",")
    given = _given(text, rest)
    if not given:
        return url, None
    if "events" not in given:
        raise _trouble(text, f"expected events=ENDPOINT beside {', '.join(given)}")
    for key in ("events", "replay"):
        if key in given:
            _check_endpoint(text, key, given[key])
    if "*" in given.get("replay", ""):
        raise _trouble(text, "replay: expected where the pod answers, got an endpoint to bind")
    ranks = given.get("ranks", "1")
    if not ranks.isdecimal() or not 1 <= int(ranks) <= _MOST_RANKS:
        raise _trouble(text, f"ranks: expected a number from 1 to {_MOST_RANKS}, got {ranks!r}")
    source = EventSource(given["events"], given.get("replay"), given.get("topic", ""), int(ranks))
    if source.ranks > 1 and not source.events.startswith("tcp://"):
        raise _trouble(text, "ranks: expected a tcp:// endpoint, whose port can be counted on")
    return url, source


def _given(text: str, items: list[str]) -> dict[str, str]:
    """Return the values by key."""
    given: dict[str, str] = {}
    for item in items:
        key, equals, value = item.partition("=")
        if key not in _KEYS or not equals or not value:
            raise _trouble(text, f"expected one of {', '.join(_KEYS)} with a value, got {item!r}")
        if key in given:
            raise _trouble(text, f"{key} is given twice")
        given[key] = value
    return given


def _check_endpoint(text: str, key: str, endpoint: str) -> None:
    """Refuse what ZeroMQ would not understand, or would not connect to."""
    if not endpoint.startswith(_TRANSPORTS):
        raise _trouble(text, f"{key}: expected tcp://HOST:PORT or ipc://PATH, got {endpoint!r}")
    if endpoint.startswith("tcp://"):
        try:
            port = urlsplit(endpoint).port
        except ValueError:
            port = None
        if not port:
            raise _trouble(text, f"{key}: expected a port, got {endpoint!r}")


def _has_name(endpoint: str) -> bool:
    """Return whether an endpoint's host is a name."""
    host = urlsplit(endpoint).hostname if endpoint.startswith("tcp://") else None
    if not host or host == "*":
        return False
    try:
        ip_address(host)
    except ValueError:
        return True
    return False


def _offset(endpoint: str, rank: int) -> str:
    """Return an endpoint whose port is so many further on."""
    if not rank:
        return endpoint
    head, _, port = endpoint.rpartition(":")
    return f"{head}:{int(port) + rank}"


def _trouble(text: str, message: str) -> InputError:
    """Return the error that names the flag."""
    return InputError(f"--pod {text}: {message}", hint=f"for example {_FORM}")
