"""Where a host name leads."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading

import pytest

from kvbench.http.host import Host, resolve


class Resolver:
    """Answers when it is told to, and counts the questions."""

    def __init__(self):
        self.questions = 0
        self.answer = asyncio.Event()
        self.failure: OSError | None = None

    async def __call__(self, host: str, port: int) -> list[str]:
        """Wait, then answer."""
        assert (host, port) == ("pod.svc", 8000)
        self.questions += 1
        await self.answer.wait()
        if self.failure is not None:
            raise self.failure
        return ["10.0.0.1", "10.0.0.2"]


def test_the_systems_resolver_is_asked():
    """For a name that every machine has."""

    async def case() -> None:
        assert "127.0.0.1" in await resolve("localhost", 80)

    asyncio.run(case())


def test_a_name_that_cannot_be_one_is_a_failure():
    """No name server could be asked for it."""
    with pytest.raises(UnicodeError):
        asyncio.run(resolve("a" * 64 + ".svc", 80))


def test_names_that_nobody_answers_for_hold_up_no_other(monkeypatch):
    """However many there are; nor does the end wait for them."""
    answer = threading.Event()
    ask = socket.getaddrinfo

    def slow(host: str, *rest: object, **named: object) -> object:
        if host.startswith("slow"):
            assert answer.wait(30)
        return ask("localhost", *rest, **named)

    async def case() -> None:
        waiting = [asyncio.ensure_future(resolve(f"slow{n}", 80)) for n in range(50)]
        assert "127.0.0.1" in await resolve("good", 80)
        assert not any(one.done() for one in waiting)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    asyncio.run(case())
    answer.set()


@pytest.mark.parametrize("address", ["10.0.0.1", "::1", "fe80::1%eth0"])
def test_an_address_is_not_asked_for(address):
    """It is its own."""

    async def case() -> None:
        asked = Resolver()
        assert await Host(address, 8000, asked).addresses() == [address]
        assert asked.questions == 0

    asyncio.run(case())


def test_a_name_is_asked_for_once_however_many_wait_and_give_up():
    """And anew once that was answered."""

    async def case() -> None:
        asked = Resolver()
        host = Host("pod.svc", 8000, asked)
        for _ in range(10):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await host.addresses()
        assert (asked.questions, host.asking) == (1, True)

        asked.answer.set()
        assert await host.addresses() == ["10.0.0.1", "10.0.0.2"]
        assert (asked.questions, host.asking) == (1, False)
        await host.addresses()
        assert asked.questions == 2

    asyncio.run(case())


def test_a_failure_that_nobody_waited_for_is_nobodys_error(caplog):
    """The next asker hears of its own."""

    async def case() -> None:
        asked = Resolver()
        asked.failure = OSError(5, "No such name")
        host = Host("pod.svc", 8000, asked)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await host.addresses()
        asked.answer.set()
        while host.asking:  # noqa: ASYNC110 - nobody tells of it, which is the point
            await asyncio.sleep(0)
        with pytest.raises(OSError, match="No such name"):
            await host.addresses()

    with caplog.at_level(logging.DEBUG):
        asyncio.run(case())
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.parametrize(
    ("deaf", "reached"), [((), "10.0.0.1"), (("10.0.0.1",), "10.0.0.2")], ids=["first", "second"]
)
def test_the_first_address_that_can_be_connected_to_is(deaf, reached):
    """In the order of the answer."""

    async def connect(address: str) -> str:
        if address in deaf:
            raise ConnectionRefusedError
        return address

    async def case() -> None:
        asked = Resolver()
        asked.answer.set()
        assert await Host("pod.svc", 8000, asked).reach(connect, 1.0) == reached

    asyncio.run(case())


def test_where_none_can_be_the_last_failure_is_told():
    """Also that there was nothing to connect to."""

    async def refuse(address: str) -> str:
        raise ConnectionRefusedError(111, f"{address} refused")

    async def nothing(_host: str, _port: int) -> list[str]:
        return []

    async def case() -> None:
        asked = Resolver()
        asked.answer.set()
        with pytest.raises(ConnectionRefusedError, match=r"10\.0\.0\.2 refused"):
            await Host("pod.svc", 8000, asked).reach(refuse, 1.0)
        with pytest.raises(OSError, match="no address"):
            await Host("pod.svc", 8000, nothing).reach(refuse, 1.0)

    asyncio.run(case())


def test_an_address_that_is_silent_does_not_hide_the_next():
    """As where a name has an address of IPv6 that leads nowhere."""

    async def connect(address: str) -> str:
        if address == "10.0.0.1":
            await asyncio.Event().wait()
        return address

    async def case() -> None:
        asked = Resolver()
        asked.answer.set()
        assert await Host("pod.svc", 8000, asked).reach(connect, 0.02) == "10.0.0.2"

    asyncio.run(case())


def test_reaching_takes_no_longer_than_it_may():
    """Whether nobody answers for the name or at its addresses."""

    async def silent(_address: str) -> str:
        await asyncio.Event().wait()
        return ""

    async def case() -> None:
        asked = Resolver()
        host = Host("pod.svc", 8000, asked)
        with pytest.raises(TimeoutError):
            await host.reach(silent, 0.01)
        asked.answer.set()
        with pytest.raises(TimeoutError):
            await host.reach(silent, 0.01)

    asyncio.run(case())
