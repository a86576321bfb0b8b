"""Pods behind a name."""

from __future__ import annotations

import asyncio
import logging

import pytest

from kvbench.errors import InputError
from kvbench.http.host import resolve
from kvbench.router.dns import DnsName


def test_each_address_of_a_name_is_a_pod():
    """Once, in order, whatever the family; not those that mean something on one link only."""

    async def answer(host: str, port: int) -> list[str]:
        assert (host, port) == ("vllm.models.svc", 8000)
        return ["10.0.0.9", "fd00::7", "10.0.0.1", "fe80::1%eth0", "10.0.0.9"]

    name = DnsName("dns://vllm.models.svc:8000", answer)
    assert asyncio.run(name.pods()) == [
        "http://10.0.0.1:8000", "http://10.0.0.9:8000", "http://[fd00::7]:8000",
    ]  # fmt: skip
    assert name.trouble is None


def test_the_name_stands_for_each_address_where_events_are_too():
    """Their ports are the same at all of them."""

    async def answer(_host: str, _port: int) -> list[str]:
        return ["10.0.0.1", "fd00::7"]

    name = DnsName("dns://vllm:8000,events=tcp://vllm:5557,replay=tcp://vllm:5558,ranks=2", answer)
    assert name.url == "dns://vllm:8000"
    assert asyncio.run(name.pods()) == [
        "http://10.0.0.1:8000,events=tcp://10.0.0.1:5557,replay=tcp://10.0.0.1:5558,ranks=2",
        "http://[fd00::7]:8000,events=tcp://[fd00::7]:5557,replay=tcp://[fd00::7]:5558,ranks=2",
    ]
    alone = DnsName("dns://vllm:8000,events=tcp://vllm:5557", answer)
    assert asyncio.run(alone.pods())[0] == "http://10.0.0.1:8000,events=tcp://10.0.0.1:5557"


@pytest.mark.parametrize("events", ["tcp://10.0.0.1:5557", "tcp://*:5557", "ipc:///tmp/x"])
def test_events_at_another_place_than_the_name_are_refused(events):
    """They would be one pod's, or nobody's."""
    with pytest.raises(InputError, match="expected tcp://vllm:PORT, got") as caught:
        DnsName(f"dns://vllm:8000,events={events}", resolve)
    assert "each pod" in caught.value.hint


def test_what_cannot_be_resolved_is_said_once_and_when_it_can_again(caplog):
    """None is not the same as no pods."""
    caplog.set_level(logging.INFO, "kvbench")
    answers: list[object] = [OSError(2, "No such name"), OSError(2, "No such name"), ["::1"], []]

    async def answer(_host: str, _port: int) -> list[str]:
        found = answers.pop(0)
        if isinstance(found, OSError):
            raise found
        return found

    async def case() -> None:
        name = DnsName("dns://a:1", answer)
        assert [await name.pods() for _ in range(2)] == [None, None]
        assert name.trouble == "could not be resolved: No such name"
        assert await name.pods() == ["http://[::1]:1"]
        assert await name.pods() == []

    asyncio.run(case())
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (logging.WARNING, "dns://a:1 could not be resolved: No such name"),
        (logging.INFO, "dns://a:1 is resolved again"),
    ]


@pytest.mark.parametrize(
    "url", ["dns://a", "dns://:1", "dns://a:x", "dns://a:99999", "dns://a:1/x", "dns://u@a:1"]
)
def test_a_name_needs_a_port_and_nothing_else(url):
    """For a pod is at each address, at that port."""
    with pytest.raises(InputError, match="expected dns://NAME:PORT, got"):
        DnsName(url, resolve)
