"""Pods from a file and from names, while the router runs."""

from __future__ import annotations

import pytest
from router.fakes import CHAT, FakePod, House, ask, chat, fine, run, until

from kvbench.clock import WallClock
from kvbench.errors import InputError
from kvbench.router.discovery import Sources
from kvbench.router.service import Router, Settings


async def nowhere(_host: str, _port: int) -> list[str]:
    """Know no name."""
    raise OSError(2, "No such name")


def names(house: House) -> set[str]:
    """Return the pods that there are."""
    return set(house.router.fleet.membership.pods)


def test_a_file_that_changes_changes_the_pods(tmp_path):
    """A bad one changes nothing, and says why where operators look."""
    path = tmp_path / "pods.yaml"

    def write(*pods: FakePod) -> None:
        path.write_text("pods:\n" + "".join(f"  - {pod.url}\n" for pod in pods))

    async def case():
        one, two = [await FakePod().start() for _ in range(2)]
        write(one)
        settings = {"named": [], "pods_file": path, "look_every_s": 0.005, "admin": True}
        async with House(**settings) as house:
            house.push_async_callback(one.stop)
            house.push_async_callback(two.stop)
            assert names(house) == {one.name}
            write(one, two)
            await until(lambda: len(names(house)) == 2)
            path.write_text("pods: [oops")
            await until(lambda: house.router.sources.troubles()[str(path)])
            assert names(house) == {one.name, two.name}
            assert await house.metric("kvbench_router_source_ok", source=str(path)) == 0
            (source,) = (await ask(house.admin, "GET", "/pods")).json()["sources"]
            assert source["pods"] == [one.name, two.name]
            assert f"{path}:1: not YAML" in source["trouble"]

            write(two)
            await until(lambda: names(house) == {two.name})
            assert (await ask(house.url, "POST", CHAT, chat("hi"))).status == 200
            assert [len(pod.calls) for pod in (one, two)] == [0, 1]
            assert await house.metric("kvbench_router_source_ok", source=str(path)) == 1

    run(case)


def test_a_name_that_gains_and_loses_addresses_changes_the_pods():
    """While it cannot be resolved, those that there were stay."""
    answers = {"found": ["127.0.0.1"], "asked": 0}

    async def resolve(_host: str, _port: int) -> list[str]:
        answers["asked"] += 1
        if answers["found"] is None:
            raise OSError(2, "No such name")
        return answers["found"]

    async def case():
        pod = await FakePod().start()
        named = [f"dns://pods:{pod.port}"]
        async with House(named=named, resolve=resolve, resolve_every_s=0.005) as house:
            house.push_async_callback(pod.stop)
            assert names(house) == {pod.name}
            assert (await ask(house.url, "POST", CHAT, chat("hi"))).status == 200
            answers["found"] = ["127.0.0.1", "127.0.0.2"]
            await until(lambda: len(names(house)) == 2)
            answers["found"] = None
            await until(lambda: house.router.sources.troubles()[named[0]])
            asked = answers["asked"]
            await until(lambda: answers["asked"] > asked + 2)
            assert len(names(house)) == 2
            assert await house.metric("kvbench_router_source_ok", source=named[0]) == 0
            answers["found"] = []
            await until(lambda: not names(house))
            assert (await ask(house.url, "POST", CHAT, chat("hi"))).status == 503

    run(case)


def test_a_name_that_cannot_be_resolved_yet_is_no_reason_not_to_start():
    """Its pods may come later."""

    async def case():
        async with House(fine, named=["dns://pods:1"], resolve=nowhere) as house:
            assert names(house) == set()
            assert (await ask(house.url, "GET", "/health")).status == 503

    run(case)


def test_what_is_named_wrongly_is_said_before_anything_starts(tmp_path):
    """Which flag, or which line of which file."""
    bad = tmp_path / "pods.yaml"
    bad.write_text("pods:\n  - nonsense\n")
    for pods, path, words in (
        (["nonsense"], None, "--pod: expected a URL"),
        (["dns://x"], None, "--pod: expected dns://NAME:PORT"),
        (["http://a:1", "http://a:1/"], None, "--pod: a:1 is given twice"),
        ([], bad, "pods.yaml:2: pods.0: expected a URL"),
        ([], tmp_path / "none.yaml", "none.yaml: cannot be read"),
    ):
        with pytest.raises(InputError, match=words):
            Sources(pods, path, nowhere)


def test_without_any_source_there_must_be_an_admin():
    """Who could otherwise never add a pod."""
    with pytest.raises(InputError, match="expected at least one pod"):
        Router([], Settings(), WallClock())

    async def case():
        async with House(named=[], admin=True) as house:
            assert (await ask(house.url, "GET", "/health")).status == 503

    run(case)
