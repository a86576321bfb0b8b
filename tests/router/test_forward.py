"""One request on its way through: bytes, faults, clients that leave."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import socket

import pytest
from router.fakes import CHAT, Client, FakePod, House, ask, by_turns, chat, chunk, fine, run, until

from kvbench.clock import VirtualClock
from kvbench.router.forward import Limits


async def silent(call):
    """Never answer; wait until the router gives up."""
    await call.gone()


async def dies(call):
    """Close the connection instead of answering."""
    call.cut()


async def resets(call):
    """The same, without manners."""
    call.cut(reset=True)


async def babbles(call):
    """Answer with what is no HTTP."""
    await call.send(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")
    await call.gone()


async def half_a_head(call):
    """Die in the middle of the head."""
    await call.send(b"HTTP/1.1 200 OK\r\ncontent-le")
    call.cut()


async def breaks_off(call):
    """Die in the middle of a stream."""
    await call.begin_stream(b"data: 1\n\n")
    call.cut()


async def counts(call):
    """Stream an answer with its usage."""
    usage = b'{"usage":{"prompt_tokens":500,"prompt_tokens_details":{"cached_tokens":448}}}'
    await call.begin_stream(b"data: 1\n\n", b"data: " + usage + b"\n\n", b"data: [DONE]\n\n")
    await call.end_stream()


# Bytes.


@pytest.mark.parametrize("last", [b"data: [DONE]\n\n", b"data: [DO", b""])
def test_the_last_count_holds_where_every_chunk_counts_tokens(last):
    """So it is with `continuous_usage_stats`."""
    told = b'data: {"usage":{"prompt_tokens":500,"prompt_tokens_details":{"cached_tokens":%d}}}\n\n'

    async def case():
        read = asyncio.Queue()

        async def counts_on(call):
            await call.begin_stream()
            for cached in range(10):
                await call.send(chunk(told % (cached * 48)))
                await read.get()
            if last:
                await call.send(chunk(last))
            await call.end_stream()

        async with House(counts_on) as house:
            client = await Client.to(house.url)
            client.send("POST", CHAT, chat("hi", stream=True))
            await client.head()
            for cached in range(10):
                assert await client.chunk() == chunk(told % (cached * 48))
                read.put_nowait(None)
            while await client.chunk() != chunk(b""):
                pass
            name = house.pods[0].name
            assert await house.metric("kvbench_router_cached_tokens_total", pod=name) == 432
            client.close()

    run(case)


def test_a_stream_passes_byte_for_byte_and_each_chunk_at_once():
    """The head with the first chunk, each before the next is sent, on a reused connection too."""

    async def case():
        steps: asyncio.Queue = asyncio.Queue()

        async def step_by_step(call):
            await steps.get()
            await call.begin_stream()
            for text in (b"data: a\n\n", "data: é🙂\n\n".encode(), b"data: [DONE]\n\n"):
                await steps.get()
                await call.send(chunk(text))
            await steps.get()
            await call.end_stream()

        async with House(step_by_step) as house:
            client = await Client.to(house.url)
            for _ in range(2):
                client.send("POST", CHAT, chat("hi", stream=True))
                steps.put_nowait(0)
                steps.put_nowait(0)
                status, headers = await client.head()
                assert (status, headers["x-kvbench-pod"]) == (200, house.pods[0].name)
                for text in ("data: a\n\n", "data: é🙂\n\n", "data: [DONE]\n\n"):
                    assert await client.chunk() == chunk(text.encode())
                    steps.put_nowait(0)
                assert await client.chunk() == chunk(b"")
            assert house.pods[0].connections == 1
            client.close()

    run(case)


def test_the_answer_says_which_pod_and_why_and_what_was_predicted():
    """Headers for people, tests and load generators."""

    async def case():
        async with House(fine, policy="prefix_cost") as house:
            body = chat("x" * 2000)
            first = await ask(house.url, "POST", CHAT, body)
            second = await ask(house.url, "POST", CHAT, body)

            assert first.headers["x-kvbench-pod"] == house.pods[0].name
            assert first.headers["x-kvbench-policy"] == "prefix_cost"
            assert first.headers["x-kvbench-reason"] == "only"
            assert first.headers["x-kvbench-predicted-tokens"] == "0"
            assert second.headers["x-kvbench-predicted-tokens"] == str(2000 // 256 * 64)

    run(case)


def test_the_pod_gets_the_request_as_it_was_sent():
    """Method, path, query, headers and body; host and length are its own."""

    async def case():
        async with House(fine) as house:
            body = chat("hello")
            await ask(house.url, "POST", CHAT + "?a=%20b", body, "authorization: Bearer k")
            (call,) = house.pods[0].calls

            assert (call.method, call.target, call.body) == ("POST", CHAT + "?a=%20b", body)
            assert call.header("authorization") == "Bearer k"
            assert call.header("host") == house.pods[0].name
            assert call.header("content-length") == str(len(body))

    run(case)


async def ends_by_closing(call):
    """Answer as HTTP/1.0 servers do."""
    await call.send(b"HTTP/1.1 200 OK\r\nx-a: 1\r\n\r\nall ", b"of it")
    call.writer.close()


async def interim(call):
    """Say something in between first."""
    await call.send(b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n")
    await call.answer(b"then this")


async def nothing(call):
    """Answer with no content."""
    await call.send(b"HTTP/1.1 204 No Content\r\n\r\n")


@pytest.mark.parametrize(
    ("script", "status", "body", "reused"),
    [
        pytest.param(fine, 200, b'{"ok":true}', True, id="a length"),
        pytest.param(ends_by_closing, 200, b"all of it", False, id="until the connection ends"),
        pytest.param(interim, 200, b"then this", True, id="interim answers are not passed on"),
        pytest.param(nothing, 204, b"", True, id="no content"),
    ],
)
def test_every_way_to_frame_an_answer(script, status, body, reused):
    """And whether the client's connection can go on."""

    async def case():
        async with House(script) as house:
            client = await Client.to(house.url)
            reply = await client.ask("POST", CHAT, chat("hi"))

            assert (reply.status, reply.body, reply.whole) == (status, body, True)
            assert (reply.headers.get("connection") != "close") == reused
            if reused:
                assert (await client.ask("POST", CHAT, chat("hi"))).body == body
                assert house.pods[0].connections == 1
            client.close()

    run(case)


def test_a_client_of_http_1_0_gets_a_stream_without_chunks():
    """It knows none; the end of the connection is the end of the answer."""

    async def case():
        async with House(counts) as house:
            client = await Client.to(house.url)
            body = chat("hi", stream=True)
            head = f"POST {CHAT} HTTP/1.0\r\ncontent-length: {len(body)}\r\n\r\n".encode()
            client.writer.write(head + body)
            reply = await client.reply()

            assert "transfer-encoding" not in reply.headers
            assert reply.body.startswith(b"data: 1\n\ndata: {")
            assert reply.body.endswith(b"data: [DONE]\n\n")
            client.close()

    run(case)


def test_requests_sent_ahead_are_answered_in_order():
    """Three on one connection before the first is answered."""

    async def case():
        async def echo(call):
            await call.answer(call.header("x-number").encode())

        async with House(echo, echo) as house:
            client = await Client.to(house.url)
            for number in range(3):
                client.send("POST", CHAT, chat("hi"), f"x-number: {number}")

            assert [(await client.reply()).body for _ in range(3)] == [b"0", b"1", b"2"]
            client.close()

    run(case)


def test_twenty_megabytes_pass_both_ways_unharmed():
    """In one body, and in one answer."""

    async def case():
        async def digest(call):
            await call.answer(hashlib.sha256(call.body).digest() * 2**19)

        async with House(digest) as house:
            body = chat("x" * 20 * 2**20)
            reply = await ask(house.url, "POST", CHAT, body)

            assert len(reply.body) == 2**24
            assert reply.body == hashlib.sha256(body).digest() * 2**19

    run(case)


def test_a_client_that_reads_slowly_stops_the_reading_from_the_pod():
    """Nothing piles up in the router; all of it arrives in the end."""

    async def case():
        sent = 0

        async def pour(call):
            nonlocal sent
            await call.begin_stream()
            for number in range(256):
                await call.send(chunk(bytes([number]) * 2**16))
                sent += 2**16
            await call.end_stream()

        async with House(pour) as house:
            client = await Client.to(house.url)
            client.writer.transport.pause_reading()
            client.send("POST", CHAT, chat("hi", stream=True))
            await house.pods[0].arrivals.get()
            (forwarding,) = house.router.fleet.under_way
            await until(lambda: forwarding._status and forwarding._slow)

            assert sent < 2**24, "the pod has not got rid of all of it"
            client.writer.transport.resume_reading()
            reply = await client.reply()
            assert reply.whole
            assert reply.body == b"".join(chunk(bytes([n]) * 2**16) for n in range(256)) + chunk(
                b""
            )
            assert (await client.ask("POST", CHAT, chat("hi", stream=True))).whole
            assert house.pods[0].connections == 1
            client.close()

    run(case)


def test_a_client_that_asks_and_does_not_read_gives_its_place_back_in_time():
    """It is cut off, the pod is told, and bears no blame."""

    async def case():
        async def pour(call):
            await call.begin_stream()
            while not call.writer.is_closing():
                await call.send(chunk(bytes(2**16)))

        async with House(pour, limits=Limits(idle_s=0.1), max_in_flight=1) as house:
            client = await Client.to(house.url)
            client.writer.transport.pause_reading()
            client.send("POST", CHAT, chat("hi", stream=True))
            call = await house.pods[0].arrivals.get()
            await until(lambda: house.router.fleet.under_way)
            await until(lambda: not house.router.fleet.under_way)
            await until(call.writer.is_closing)

            assert house.in_flight() == [(0, 0)]
            pod = house.router.fleet.membership.pods[call.pod.name]
            assert (pod.trouble, pod.breaker.failures) == (None, 0)
            assert await house.metric(
                "kvbench_router_requests_total", pod=pod.name, status="gone"
            ) == 1  # fmt: skip
            client.vanish()

    run(case)


def test_a_client_that_reads_slowly_is_not_cut():
    """As long as it takes some; however little of it the router sees."""

    async def case():
        clock, loop = VirtualClock(), asyncio.get_running_loop()

        async def pour(call):
            await call.begin_stream()
            while not call.writer.is_closing():
                await call.send(chunk(b"data: %b\n\n" % bytes(2**16)))

        async with House(pour, clock=clock) as house:
            fleet = house.router.fleet
            host, port = house.url.removeprefix("http://").split(":")
            client = socket.create_connection((host, int(port)))
            client.settimeout(0)
            body = chat("hi", stream=True)
            head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
            await loop.sock_sendall(client, head.encode() + body)
            await until(lambda: any(one._slow for one in fleet.under_way))
            [one] = fleet.under_way
            for moment in range(200, 2000, 200):
                for _ in range(4):
                    await loop.sock_recv(client, 2**16)
                clock.advance_to(moment)
                await until(lambda: fleet.sweep() or one.deadline == clock.now() + 300)
            for moment in (2000, 2301, 2602):
                clock.advance_to(moment)
                fleet.sweep()

            assert not fleet.under_way
            client.close()

    run(case)


# Faults before the first byte.


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        pytest.param(dies, "reset", id="closed instead of answering"),
        pytest.param(resets, "reset", id="reset instead of answering"),
        pytest.param(half_a_head, "reset", id="died in the middle of the head"),
        pytest.param(babbles, "protocol", id="answered what is no HTTP"),
    ],
)
def test_a_pod_that_fails_before_it_answers_is_replaced_and_the_client_does_not_notice(fault, kind):
    """The whole request goes to another pod; the failure is counted."""

    async def case():
        async with House(fault, fine, policy="round_robin") as house:
            bad, good = house.pods
            body = chat("x" * 500)
            reply = await ask(house.url, "POST", CHAT, body)

            assert (reply.status, reply.body) == (200, b'{"ok":true}')
            assert reply.headers["x-kvbench-pod"] == good.name
            assert bad.calls[0].body == good.calls[0].body == body
            assert house.in_flight() == [(0, 0), (0, 0)]
            assert await house.metric("kvbench_router_retries_total", pod=bad.name) == 1
            errors = await house.metric("kvbench_router_errors_total", pod=bad.name, kind=kind)
            assert errors == 1

    run(case)


def test_a_pod_that_nobody_listens_for_is_replaced_and_forgotten():
    """What it held is gone with it."""

    async def case():
        async with House(fine, fine, policy="prefix_cost") as house:
            body = chat("x" * 2000)
            first = await ask(house.url, "POST", CHAT, body)
            gone = next(p for p in house.pods if p.name == first.headers["x-kvbench-pod"])
            await gone.stop()
            second = await ask(house.url, "POST", CHAT, body)
            await gone.start()
            third = await ask(house.url, "POST", CHAT, body)

            assert second.status == 200
            assert second.headers["x-kvbench-pod"] != gone.name
            assert third.headers["x-kvbench-pod"] == second.headers["x-kvbench-pod"]
            assert house.router.fleet.membership.pods[gone.name].trouble == (
                "could not be connected to: Connection refused"
            )

    run(case)


def test_a_router_that_is_out_of_connections_takes_no_pods_cache_for_lost():
    """Only a refused connection says that the process has ended."""

    async def out_of_files(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async def case():
        async with House(fine, policy="prefix_cost") as house:
            body, client = chat("x" * 2000), await Client.to(house.url)
            await client.ask("POST", CHAT, body)
            house.pods[0].hang_up()
            loop = asyncio.get_running_loop()
            loop.create_connection = out_of_files
            reply = await client.ask("POST", CHAT, body)
            assert reply.status == 502
            assert "Too many open files" in reply.json()["error"]["message"]
            del loop.create_connection
            reply = await client.ask("POST", CHAT, body)

            assert reply.status == 200
            assert int(reply.headers["x-kvbench-predicted-tokens"]) > 400
            client.close()

    run(case)


def test_an_idle_connection_that_the_pod_has_closed_costs_nothing_but_a_new_one():
    """Neither the pod nor the client is to blame."""

    async def case():
        async with House(by_turns(fine, dies, fine)) as house:
            (pod,) = house.pods
            for _ in range(2):
                assert (await ask(house.url, "POST", CHAT, chat("hi"))).status == 200
            assert pod.connections == 2
            pod.hang_up()
            assert (await ask(house.url, "POST", CHAT, chat("hi"))).status == 200

            assert pod.connections == 3
            stale = await house.metric("kvbench_router_errors_total", pod=pod.name, kind="reset")
            assert stale == 0
            assert house.router.fleet.membership.pods[pod.name].trouble is None

    run(case)


def test_when_every_pod_fails_the_client_is_told_which_and_how():
    """502, in the form of OpenAI's errors."""

    async def case():
        async with House(dies, babbles, policy="round_robin") as house:
            one, two = house.pods
            reply = await ask(house.url, "POST", CHAT, chat("hi"))

            assert reply.status == 502
            error = reply.json()["error"]
            assert (error["type"], error["code"]) == ("BadGatewayError", 502)
            assert error["message"] == (
                f"No pod could answer: {one.name} closed the connection before it answered; "
                f"{two.name} did not answer in HTTP."
            )
            assert house.in_flight() == [(0, 0), (0, 0)]
            assert await house.metric("kvbench_router_refusals_total", status="502") == 1

    run(case)


def test_at_most_four_pods_are_tried():
    """A request that kills pods must not kill the whole fleet."""

    async def case():
        async with House(*[dies] * 6) as house:
            reply = await ask(house.url, "POST", CHAT, chat("hi"))

            assert reply.status == 502
            assert sum(len(pod.calls) for pod in house.pods) == 4

    run(case)


def test_pods_that_cannot_be_connected_to_do_not_count_as_tried():
    """However many they are, the one that is there answers."""

    async def case():
        async with House(*[fine] * 8, policy="round_robin") as house:
            for pod in house.pods[:7]:
                await pod.stop()
            reply = await ask(house.url, "POST", CHAT, chat("hi"))

            assert (reply.status, reply.headers["x-kvbench-pod"]) == (200, house.pods[7].name)
            for pod in house.pods[:7]:
                await pod.start()

    run(case)


@pytest.mark.parametrize("others", [0, 1, 5])
@pytest.mark.parametrize("status", [503, 429])
def test_an_answer_of_503_or_429_is_passed_on_only_if_nobody_else_is_there(status, others):
    """Whoever says so has done nothing yet."""

    async def case():
        async def full(call):
            await call.answer(b"full", status, b"retry-after: 7")

        async with House(full, *[full if others > 1 else fine] * others) as house:
            client = await Client.to(house.url)
            reply = await client.ask("POST", CHAT, chat("hi"))

            assert sum(len(pod.calls) for pod in house.pods) <= 4
            if others == 1:
                assert (reply.status, reply.body) == (200, b'{"ok":true}')
                assert await house.metric("kvbench_router_errors_total",
                    pod=house.pods[0].name, kind="unavailable") <= 1  # fmt: skip
            else:
                assert (reply.status, reply.body) == (status, b"full")
                assert reply.headers["retry-after"] == "7"
            assert house.in_flight() == [(0, 0)] * len(house.pods)
            client.close()

    run(case)


def test_a_pod_that_answers_429_to_all_draws_no_traffic():
    """It is done with each request at once, and so has the least to do: a hole for all of them."""

    async def case():
        async def full(call):
            await call.answer(b"full", 429)

        async with House(full, fine, fine, policy="least_load") as house:
            replies = [await ask(house.url, "POST", CHAT, chat(f"hi {n}")) for n in range(40)]

            assert {reply.status for reply in replies} == {200}
            assert len(house.pods[0].calls) <= 3

    run(case)


def test_a_pod_that_refuses_all_prompts_draws_no_traffic():
    """A wrong key, or no chat template: it answers at once, and so has the least to do."""

    async def case():
        async def refuses(call):
            await call.answer(b"no", 401)

        async with House(refuses, fine, fine, policy="round_robin") as house:
            statuses = [(await ask(house.url, "POST", CHAT, chat("hi"))).status for _ in range(99)]

            assert statuses.count(401) == 5
            assert statuses[15:] == [200] * 84
            assert len(house.pods[0].calls) == 5 + 3
            trouble = house.router.fleet.membership.pods[house.pods[0].name].trouble
            assert trouble is not None
            assert trouble.startswith("refuses prompts with 4xx that ")

    run(case)


@pytest.mark.parametrize("policy", ["least_load", "session", "prefix_cost"])
def test_a_burst_of_wrong_prompts_leaves_every_pod_on_offer(policy):
    """Whatever one client does wrong, and however often, no other is sent away for it."""

    async def case():
        async def judges(call):
            await call.answer(b"{}", 422 if b"wrong" in call.body else 200)

        async with House(judges, judges, judges, policy=policy) as house:
            for _ in range(60):
                reply = await ask(house.url, "POST", CHAT, chat("wrong", user="u"))
                assert reply.status == 422
            for pod in house.router.fleet.membership.pods.values():
                assert (pod.trouble, pod.breaker.failures) == (None, 0)
            asked = sum(len(pod.calls) for pod in house.pods)
            assert 60 < asked <= 60 + 60 // 5  # now and then another pod is asked, too

    run(case)


def test_a_refusal_that_nobody_else_can_judge_is_passed_on():
    """Whatever the only pod says, and however often, is its word."""

    async def case():
        async def refuses(call):
            await call.answer(b"no", 404)

        async with House(refuses) as house:
            replies = [await ask(house.url, "POST", CHAT, chat("hi")) for _ in range(20)]

            assert {(reply.status, reply.body) for reply in replies} == {(404, b"no")}
            assert len(house.pods[0].calls) == 20

    run(case)


def test_a_client_that_errs_costs_no_pod_its_traffic():
    """Others are answered in between, by the same pods."""

    async def case():
        async def judges(call):
            await call.answer(b"{}", 400 if b"wrong" in call.body else 200)

        async with House(judges, judges, policy="round_robin") as house:
            for n in range(60):
                await ask(house.url, "POST", CHAT, chat("right" if n % 10 < 2 else "wrong"))
            assert [pod.trouble for pod in house.router.fleet.membership.pods.values()] == [
                None
            ] * 2
            assert {len(pod.calls) for pod in house.pods} == {30}

    run(case)


def test_where_the_other_pod_fails_the_word_of_the_one_that_refused_holds():
    """A client that errs is told so, and not that no pod could answer."""

    async def case():
        async def refuses(call):
            await call.answer(b"no", 404)

        async with House(refuses, dies, policy="round_robin") as house:
            pod = house.router.fleet.membership.pods[house.pods[0].name]
            pod.refusals = 5
            replies = [await ask(house.url, "POST", CHAT, chat("hi")) for _ in range(4)]

            assert {(reply.status, reply.body) for reply in replies} == {(404, b"no")}
            assert len(house.pods[0].calls) == 4 + 1, "one was asked anew, for another had died"
            assert house.in_flight() == [(0, 0), (0, 0)]

    run(case)


def test_a_path_with_a_slash_too_many_does_not_lead_past_the_router():
    """As FastAPI redirects: to the host that it was asked for, which is the pod's."""

    async def case():
        async def redirects(call):
            location = f"location: http://{call.header('host')}{CHAT}"
            await call.answer(b"", 307, location.encode())

        async with House(redirects) as house:
            reply = await ask(house.url, "POST", f"{CHAT}/", chat("hi"))

            assert (reply.status, reply.headers["location"]) == (307, CHAT)

    run(case)


def test_an_answer_of_5xx_is_passed_on_and_three_open_the_breaker():
    """The pod has answered: nothing is repeated. But it is left alone for a while."""

    async def case():
        async def sick(call):
            await call.answer(b"sick", 500)

        async with House(sick, fine, policy="round_robin") as house:
            statuses = [(await ask(house.url, "POST", CHAT, chat("hi"))).status for _ in range(9)]

            assert statuses == [500, 200, 500, 200, 500, 200, 200, 200, 200]
            assert await house.metric("kvbench_router_retries_total", pod=house.pods[0].name) == 0

    run(case)


# Faults behind the first byte.


def test_a_pod_that_breaks_off_has_its_client_cut_off():
    """So that nobody takes half an answer for a whole one; nothing is repeated."""

    async def case():
        async with House(breaks_off, fine, policy="round_robin") as house:
            reply = await ask(house.url, "POST", CHAT, chat("hi", stream=True))

            assert (reply.status, reply.whole) == (200, False)
            assert reply.body in {chunk(b"data: 1\n\n"), b""}
            assert house.pods[1].calls == []
            assert house.in_flight() == [(0, 0), (0, 0)]
            pod = house.pods[0].name
            assert await house.metric("kvbench_router_requests_total", pod=pod, status="cut") == 1
            assert await house.metric("kvbench_router_errors_total", pod=pod, kind="cut") == 1
            assert house.router.fleet.membership.pods[pod].breaker.failures == 1

    run(case)


BEGUN = chunk(b'event: response.created\ndata: {"response":{"id":"resp_1"}}\n\n')


@pytest.mark.parametrize(
    ("path", "more", "retried"),
    [
        (CHAT, b"", True),
        (CHAT, b"9\r", True),
        (CHAT, b"5\r\nda", False),
        (CHAT, chunk(b": still there\n\n"), False),
        ("/v1/responses", BEGUN, True),
        ("/v1/responses", BEGUN[:-9], True),
        ("/v1/responses", chunk(b": still there\n\n"), False),
        ("/v1/responses", BEGUN + chunk(b"event: response.output_item.added\n"), False),
        ("/v1/responses", chunk(b"event: response.created\n" + b"x" * 2**21), False),
    ],
)
def test_a_stream_that_breaks_off_before_its_first_token_is_answered_by_another(
    path, more, retried
):
    """That a pod has taken the request is all that it has said: the client has not seen it yet."""

    async def case():
        async def begins(call):
            await call.begin_stream()
            await call.send(more)
            call.cut()

        async def streams(call):
            await call.begin_stream(b"data: 1\n\n")
            await call.end_stream()

        async with House(begins, streams, policy="round_robin") as house:
            prompt = chat("hi", stream=True)
            reply = await ask(house.url, "POST", path, prompt, "x-request-id: mine")

            found = (reply.status, reply.whole, reply.body, reply.headers["x-kvbench-pod"])
            if not retried:
                assert found[:2] == (200, False)
                assert house.pods[1].calls == []
            else:
                told = chunk(b"data: 1\n\n") + chunk(b"")
                assert found == (200, True, told, house.pods[1].name)
                assert house.pods[1].calls[0].body == prompt
                ends = [one.end for one in house.router.fleet.account.journal.of("mine")]
                assert ends == ["failed", "answered"]
            assert house.in_flight() == [(0, 0), (0, 0)]

    run(case)


def test_a_stream_without_anything_in_it_is_passed_on():
    """Its head, too, when it ends."""

    async def case():
        async def nothing(call):
            await call.begin_stream()
            await call.end_stream()

        async with House(nothing) as house:
            client = await Client.to(house.url)
            for _ in range(2):
                reply = await client.ask("POST", CHAT, chat("hi", stream=True))
                assert (reply.status, reply.whole, reply.body) == (200, True, chunk(b""))
            client.close()

    run(case)


def test_an_answer_without_a_length_that_breaks_off_resets_the_client():
    """A quiet end would look like a whole answer."""

    async def case():
        async def resets_in_the_middle(call):
            await call.send(b"HTTP/1.1 200 OK\r\n\r\nhalf of it")
            await go_on.wait()
            call.cut(reset=True)

        go_on = asyncio.Event()
        async with House(resets_in_the_middle) as house:
            client = await Client.to(house.url)
            client.send("POST", CHAT, chat("hi"))
            await client.head()
            go_on.set()

            with pytest.raises(ConnectionResetError):
                await client.reader.read()
            client.close()

    run(case)


def test_a_pod_that_says_more_than_it_was_asked_is_cut():
    """A second answer on the same connection would go to the next client."""

    async def case():
        async def says_too_much(call):
            await call.send(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nokHTTP/1.1 200 OK\r\n")
            await call.gone()

        async with House(by_turns(says_too_much, fine)) as house:
            await ask(house.url, "POST", CHAT, chat("hi"))
            second = await ask(house.url, "POST", CHAT, chat("hi"))

            assert second.body == b'{"ok":true}'
            assert house.pods[0].connections == 2

    run(case)


# Time.


@pytest.mark.parametrize(
    ("script", "after_s", "status", "whole"),
    [
        pytest.param(silent, 601, 504, True, id="no answer in ten minutes"),
        pytest.param(silent, 599, None, None, id="not yet ten minutes"),
    ],
)
def test_a_pod_that_does_not_begin_is_given_up_and_not_replaced(script, after_s, status, whole):
    """The next one would be slower. The pod sees the connection close."""

    async def case():
        clock = VirtualClock()
        async with House(script, fine, policy="round_robin", clock=clock) as house:
            client = await Client.to(house.url)
            client.send("POST", CHAT, chat("hi"))
            call = await house.pods[0].arrivals.get()
            clock.advance_to(after_s)
            house.router.fleet.sweep()
            if status is None:
                assert len(house.router.fleet.under_way) == 1
            else:
                reply = await client.reply()
                assert (reply.status, reply.whole) == (status, whole)
                assert reply.json()["error"]["message"] == (
                    f"{house.pods[0].name} took too long to answer."
                )
                await call.gone()
                assert house.in_flight() == [(0, 0), (0, 0)]
                assert house.pods[1].calls == []
            client.vanish()
            await house.quiet()

    run(case)


@pytest.mark.parametrize("piece", [b"%d", b"data: %d\n\n"])
def test_a_stream_that_stalls_is_cut(piece):
    """Five minutes after its last piece, not after its first; of lines, after that was seen."""

    async def case():
        clock = VirtualClock()
        again = asyncio.Event()

        async def stalls(call):
            await call.begin_stream(piece % 1)
            await again.wait()
            await call.send(chunk(piece % 2))
            await call.gone()

        async with House(stalls, clock=clock) as house:
            client = await Client.to(house.url)
            client.send("POST", CHAT, chat("hi", stream=True))
            await client.head()
            assert await client.chunk() == chunk(piece % 1)
            clock.advance_to(200)
            again.set()
            assert await client.chunk() == chunk(piece % 2)
            house.router.fleet.sweep()
            clock.advance_to(400)
            house.router.fleet.sweep()
            assert len(house.router.fleet.under_way) == 1
            clock.advance_to(501)
            house.router.fleet.sweep()

            assert await cut_off(client)
            assert house.in_flight() == [(0, 0)]
            client.close()

    run(case)


async def cut_off(client: Client) -> bool:
    """Return whether the connection ends without another byte."""
    try:
        return await client.reader.read() == b""
    except ConnectionError:
        return True


# Clients that leave.


def test_a_client_that_leaves_has_its_request_cancelled_at_once():
    """Before the answer and in its middle: the pod sees its connection close."""

    async def case():
        async def streams(call):
            await call.begin_stream(b"1")
            await call.gone()

        async with House(silent, streams, policy="round_robin") as house:
            early, late = await Client.to(house.url), await Client.to(house.url)
            early.send("POST", CHAT, chat("hi"))
            waiting = await house.pods[0].arrivals.get()
            late.send("POST", CHAT, chat("hi", stream=True))
            await late.head()
            await late.chunk()
            assert [requests for requests, _ in house.in_flight()] == [1, 1]
            early.vanish()
            late.vanish()
            await waiting.gone()
            await house.pods[1].calls[0].gone()
            await house.quiet()

            assert house.in_flight() == [(0, 0), (0, 0)]
            for pod in house.pods:
                gone = await house.metric(
                    "kvbench_router_requests_total", pod=pod.name, status="gone"
                )
                assert gone == 1
                assert house.router.fleet.membership.pods[pod.name].trouble is None

    run(case)


def test_thousands_of_clients_that_vanish_leave_nothing_behind():
    """2,000, in waves: in flight is zero, whatever moment they left at."""

    async def case():
        async with House(silent, by_turns(silent), policy="least_load") as house:
            for wave in range(10):
                clients = [await Client.to(house.url) for _ in range(200)]
                for number, client in enumerate(clients):
                    client.send("POST", CHAT, chat(f"{wave}/{number}"))
                if wave % 2:  # those of the even waves leave before a pod has seen them
                    await until(lambda: len(house.router.fleet.under_way) == 200)
                for client in clients:
                    client.vanish()
                await asyncio.sleep(0)
                await until(lambda: not house.router.fleet.under_way)

            assert house.in_flight() == [(0, 0), (0, 0)]

    run(case)


# Learning.


def test_prefill_counts_until_the_first_token_and_the_request_until_its_end():
    """What a policy reads of a pod."""

    async def case():
        go_on = asyncio.Event()

        async def slowly(call):
            await call.begin_stream()
            await go_on.wait()
            await call.send(chunk(b"1"))
            go_on.clear()
            await go_on.wait()
            await call.end_stream()

        async with House(slowly) as house:
            client = await Client.to(house.url)
            client.send("POST", CHAT, chat("x" * 3992, stream=True))
            await house.pods[0].arrivals.get()
            assert house.in_flight() == [(1, 1000)]
            go_on.set()
            await client.head()
            await client.chunk()
            assert house.in_flight() == [(1, 0)]
            go_on.set()
            await client.chunk()
            assert house.in_flight() == [(0, 0)]
            client.close()

    run(case)


def test_an_answer_in_one_piece_counts_as_prefill_for_as_long_as_was_expected():
    """0.1 s for a thousand tokens, by the prior; the request counts on until it ends."""

    async def case():
        clock = VirtualClock()
        async with House(silent, policy="prefix_cost", clock=clock) as house:
            client = await Client.to(house.url)
            client.send("POST", CHAT, chat("x" * 3992))
            await house.pods[0].arrivals.get()
            for moment, expected in ((0.09, 1000), (0.11, 0)):
                clock.advance_to(moment)
                house.router.fleet.sweep()
                assert house.in_flight() == [(1, expected)]
            client.vanish()
            await house.quiet()

    run(case)


def test_what_was_predicted_is_joined_with_what_was_delivered():
    """Per pod; and the length of a token is learned on the way."""

    async def case():
        async with House(counts, policy="prefix_cost") as house:
            for _ in range(2):
                await ask(house.url, "POST", CHAT, chat("x" * 1992, stream=True))
            pod = house.pods[0].name

            async def total(name):
                return await house.metric(f"kvbench_router_{name}_total", pod=pod)

            assert await total("prompt_tokens") == 1000
            assert await total("cached_tokens") == 896
            assert await total("predicted_cached_tokens") == 7 * 64
            assert house.router.fleet.bytes_per_token.of("m") == pytest.approx(2000 / 500)
            ttfts = await house.metric("kvbench_router_time_to_first_token_seconds_count", pod=pod)
            assert ttfts == 2

    run(case)


def test_what_a_pod_refused_or_its_client_left_too_early_is_not_predicted():
    """Also where the pod had begun its answer, with no token in it; a stream that ran is."""

    async def case():
        async def refuses(call):
            await call.answer(b"{}", 400)

        async def begins(call):
            await call.begin_stream()
            await call.gone()

        async def streams(call):
            await call.begin_stream(b"data: 1\n\n")
            await call.gone()

        async with House(by_turns(refuses, begins, streams, fine), policy="prefix_cost") as house:
            body, predicted = chat("x" * 8000, stream=True), []
            for turn in range(4):
                client = await Client.to(house.url)
                client.send("POST", CHAT, body)
                await house.pods[0].arrivals.get()
                if turn != 1:
                    await client.head()
                if turn == 2:
                    await client.chunk()
                client.vanish()
                await house.quiet()
                (entry,) = house.router.fleet.account.journal.latest(1)
                predicted.append(entry.predicted_tokens)

            assert predicted[:3] == [0, 0, 0]
            assert predicted[3] > 1000

    run(case)


def test_an_answer_in_one_piece_says_nothing_of_the_first_token():
    """Its time is not a time to first token."""

    async def case():
        async with House(fine) as house:
            await ask(house.url, "POST", CHAT, chat("hi"))
            pod = house.pods[0].name
            name = "kvbench_router_time_to_first_token_seconds_count"

            assert await house.metric(name, pod=pod) == 0

    run(case)


def test_a_pod_is_never_left_with_a_request_whatever_its_script():
    """Ten kinds of pods behind one router, a hundred requests: all end, nothing is in flight."""

    async def case():
        scripts = [fine, dies, resets, babbles, half_a_head, breaks_off, counts, interim, nothing,
                   ends_by_closing]  # fmt: skip
        async with House(*scripts, policy="random", seed=3) as house:
            replies = await asyncio.gather(
                *(ask(house.url, "POST", CHAT, chat(f"{n}", stream=True)) for n in range(100))
            )

            assert {reply.status for reply in replies} <= {200, 204, 502}
            assert house.in_flight() == [(0, 0)] * len(scripts)
            assert not house.router.fleet.under_way

    run(case)


def test_fake_pods_listen_again_where_they_did():
    """A restarted pod has its old address: the fakes keep their promise."""

    async def case():
        pod = await FakePod().start()
        port = pod.port
        await pod.stop()
        await pod.start()
        assert pod.port == port
        await pod.stop()

    run(case)
