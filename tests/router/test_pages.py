"""What the router answers itself."""

from __future__ import annotations

import json

import pytest
from router.fakes import CHAT, Client, House, ask, chat, fine, run


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("limit=abc", "limit: expected a number from 1 to 1000, got 'abc'"),
        ("limit=-5", "limit: expected a number from 1 to 1000, got '-5'"),
        ("limit=0", "limit: expected a number from 1 to 1000, got '0'"),
        ("limit=1001", "limit: expected a number from 1 to 1000, got '1001'"),
        ("limit=", "limit: expected a number from 1 to 1000, got ''"),
        ("limit=5&limit=x", "limit: expected a number from 1 to 1000, got 'x'"),
        ("limit=%D9%A3", "limit: expected a number from 1 to 1000, got '٣'"),
        ("since=x&limit=5", "since: expected a number from 0 to 999999999999999, got 'x'"),
        ("since=" + "9" * 5000, "got '" + "9" * 40 + "'"),
    ],
)
def test_a_number_in_a_query_that_is_none_is_refused_and_named(query, words):
    """400 in the form of OpenAI's errors, with the value; the limit is not guessed."""

    async def case():
        async with House(fine) as house:
            reply = await ask(house.url, "GET", f"/decisions?{query}")
            error = json.loads(reply.body)["error"]
            assert (reply.status, error["type"], error["code"]) == (400, "BadRequestError", 400)
            assert error["message"].endswith(words)
            assert error["param"] in {"limit", "since"}
            assert error["message"].startswith(f"{error['param']}: expected a number")

    run(case)


def test_numbers_within_bounds_are_taken():
    """The least and the most of each; what else stands in the query is nobody's concern."""

    async def case():
        async with House(fine) as house:
            for text in ("one", "two", "three"):
                await ask(house.url, "POST", CHAT, chat(text))
            for query, count in (
                ("", 3),
                ("?limit=1", 1),
                ("?limit=1000&x=y", 3),
                ("?since=0", 3),
                ("?since=2&limit=1000", 1),
                ("?since=999999999999999", 0),
            ):
                reply = await ask(house.url, "GET", f"/decisions{query}")
                assert (reply.status, len(json.loads(reply.body)["decisions"])) == (200, count)

    run(case)


def test_what_is_no_clients_request_is_not_counted_as_refused():
    """Whoever asks for its health is told, and so is whoever errs on the admin port."""

    async def case():
        async with House(admin=True, named=[]) as house:
            assert (await ask(house.url, "GET", "/health")).status == 503
            assert (await ask(house.admin, "GET", "/nothing")).status == 404
            assert (await ask(house.admin, "POST", "/pods", b"{}")).status == 400
            refusals = house.router.fleet.meters.refusals
            assert [sample for family in refusals.collect() for sample in family.samples] == []
            assert (await ask(house.url, "GET", "/nothing")).status == 503
            assert await house.metric("kvbench_router_refusals_total", status="503") == 1

    run(case)


@pytest.mark.parametrize(
    ("said", "asked"),
    [
        (b"fa\xc3\xa7ade", "fa%C3%A7ade"),
        (b"fa\xc3\xa7ade", "fa%c3%a7ade/"),
        (b"fa\xc3\xa7ade", "fa%C3%83%C2%A7ade"),
        (b"fa\xe7ade", "fa%C3%A7ade"),
        (b"fa\xe7ade", "fa%E7ade"),
        (b"a/b c", "a/b%20c"),
        (b"a/b", "a%2Fb"),
        (b"a%20b", "a%20b"),
        (b"a%20b", "a%2520b"),
        (b"end/", "end/"),
        (b"x" * 300, "x" * 300),
    ],
)
def test_a_decision_is_found_however_its_requests_id_is_written(said, asked):
    """As it is, or percent-encoded: its bytes, or the UTF-8 of what they stand for."""

    async def case():
        async with House(fine) as house:
            await ask(
                house.url, "POST", CHAT, chat("hi"), f"x-request-id: {said.decode('latin-1')}"
            )
            client = await Client.to(house.url)
            for target in (f"/decisions/{asked}", "/decisions/fa%FFade"):
                reply = await client.ask("GET", target)
                assert reply.status == (404 if "FF" in target else 200)
            client.close()

    run(case)
