"""Where a host name leads, and who can be reached there.

A question to the system's resolver cannot be taken back: until it is answered it holds a thread,
however little patience its asker has. So a host asks once at a time, all who want to know wait for
the same answer, and who gives up leaves the question to the others. The thread is the question's
own: of a pool, a few names that nobody answers for would take all threads, and names that are well
would wait; and a process can end without waiting for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import threading
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")


async def resolve(host: str, port: int) -> list[str]:
    """Return the addresses of a host.

    Raises:
        OSError: It has none, or nobody can tell.
        UnicodeError: The name cannot be one.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[list[str]] = loop.create_future()

    def ask() -> None:
        with contextlib.suppress(RuntimeError):  # nobody is left to be told
            try:
                found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            except (OSError, UnicodeError) as error:
                loop.call_soon_threadsafe(_settle, answer, error)
            else:
                addresses = [str(address[0]) for *_, address in found]
                loop.call_soon_threadsafe(_settle, answer, addresses)

    threading.Thread(target=ask, name=f"resolve {host}", daemon=True).start()
    return await answer


def _settle(answer: asyncio.Future[list[str]], found: list[str] | Exception) -> None:
    """Hand out what was found, if anybody still waits."""
    if answer.done():
        return
    if isinstance(found, Exception):
        answer.set_exception(found)
    else:
        answer.set_result(found)


class Host:
    """A host, by name or by address.

    Args:
        host: Its name or address.
        port: The port that is to be reached.
        resolve: Returns the addresses of a name.
    """

    def __init__(
        self,
        host: str,
        port: int,
        resolve: Callable[[str, int], Awaitable[list[str]]] = resolve,
    ) -> None:
        self._host, self._port = host, port
        self._resolve = resolve
        self._is_address = _is_address(host)
        self._asking: asyncio.Future[list[str]] | None = None

    @property
    def asking(self) -> bool:
        """Whether its addresses have been asked for and nobody has answered yet."""
        return self._asking is not None and not self._asking.done()

    async def addresses(self) -> list[str]:
        """Return its addresses.

        Raises:
            OSError: It has none, or nobody can tell.
            UnicodeError: The name cannot be one.
        """
        if self._is_address:
            return [self._host]
        asking = self._asking
        if asking is None or asking.done():
            asking = self._asking = asyncio.ensure_future(self._resolve(self._host, self._port))
            asking.add_done_callback(_heard)
        return await asyncio.shield(asking)

    async def reach(self, connect: Callable[[str], Awaitable[T]], timeout_s: float) -> T:
        """Return what `connect` makes of the first address that it can connect to.

        Each address has an equal share of the time: one that is silent must not hide the next.

        Args:
            connect: Connects to an address; it raises `OSError` where it cannot.
            timeout_s: Seconds for all of it.

        Raises:
            OSError: It cannot connect to any, as the last has it (`TimeoutError`: not in time); or
                there is none.
            UnicodeError: The name cannot be one.
        """
        failure = OSError("the name has no address")
        async with asyncio.timeout(timeout_s):
            addresses = await self.addresses()
            for address in addresses:
                try:
                    async with asyncio.timeout(timeout_s / len(addresses)):
                        return await connect(address)
                except OSError as error:
                    failure = error
        raise failure


def _heard(asking: asyncio.Future[list[str]]) -> None:
    """Take note of a failure, also where all who asked have given up."""
    if not asking.cancelled():
        asking.exception()


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
