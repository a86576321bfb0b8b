"""A request of the router's own to a pod: a probe, a reset. The answer is small and kept whole."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvbench.router.upstream import in_words

if TYPE_CHECKING:
    from kvbench.http.address import Address
    from kvbench.router.heads import Head
    from kvbench.router.upstream import Failure, Pool, Upstream

_MOST_BODY = 2**20


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back.

    Attributes:
        status: HTTP status, 0 if there was none.
        body: Of one longer than a mebibyte, the beginning.
        trouble: Why there was none, else None.
        refused: Whether nobody listens there.
    """

    status: int
    body: bytes
    trouble: str | None = None
    refused: bool = False


class _Call:
    """Collects one answer."""

    def __init__(self, done: asyncio.Future[Answer]) -> None:
        self._done = done
        self._status = 0
        self._body = b""

    def answered(self, head: Head, length: int) -> None:  # noqa: ARG002 - the status is enough
        """Keep the status."""
        self._status = head.status

    def arrived(self, raw: bytes, pieces: tuple[bytes, ...]) -> None:  # noqa: ARG002 - those
        """Keep the body, up to a bound: more is not waited for, there may be no end of it."""
        if len(self._body) < _MOST_BODY:
            self._body += b"".join(pieces)
        else:
            self.completed()

    def completed(self) -> None:
        """Hand out the answer."""
        self._settle(Answer(self._status, self._body))

    def failed(self, failure: Failure, why: str) -> None:  # noqa: ARG002 - the words are enough
        """Hand out the failure."""
        self._settle(Answer(0, b"", why))

    def _settle(self, answer: Answer) -> None:
        if not self._done.done():
            self._done.set_result(answer)


async def fetch(
    pool: Pool, address: Address, method: str, path: str, timeout_s: float, *, body: bytes = b""
) -> Answer:
    """Ask the pod, over a new connection: a probe is to find out whether one can be made.

    Args:
        pool: Makes the connection.
        address: Where the pod is.
        method: HTTP method.
        path: Path and query.
        timeout_s: Seconds that the answer may take.
        body: JSON, where there is something to say.
    """
    upstream: Upstream | None = None
    done: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
    try:
        async with asyncio.timeout(timeout_s):
            upstream = await pool.connect(timeout_s, single=True)
            length = b""
            if method == "POST":
                length = b"content-type: application/json\r\ncontent-length: %d\r\n" % len(body)
            head = b"%b %b%b HTTP/1.1\r\nhost: %b\r\n%bvia: 1.1 %b\r\nconnection: close\r\n\r\n" % (
                method.encode(),
                address.base.encode(),
                path.encode(),
                address.name.encode(),
                length,
                pool.router,
            )
            upstream.ask(_Call(done), method, head, body)
            return await done
    except TimeoutError:
        slow = "its name could not be resolved" if pool.unresolved else "did not answer"
        return Answer(0, b"", f"{slow} in time")
    except ConnectionRefusedError:
        return Answer(0, b"", "connection refused", refused=True)
    except (OSError, UnicodeError) as error:
        return Answer(0, b"", f"could not be connected to: {in_words(error)}")
    finally:
        if upstream is not None:
            upstream.drop()
