"""Whatever clients send: the right status, in the form of OpenAI's errors; no crash, no hang."""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from router.fakes import CHAT, Client, House, Reply, ask, chat, fine, run

PROMPTS = (CHAT, "/v1/completions", "/v1/responses", "/v1/messages")
OTHERS = ("/v1/embeddings", "/tokenize", "/v1/models", "/score")


def error_of(reply: Reply) -> dict:
    """Return the error that a reply is, after a look at its form."""
    assert reply.headers["content-type"] == "application/json"
    document = reply.json()
    assert list(document) == ["error"]
    assert set(document["error"]) == {"message", "type", "param", "code"}
    assert document["error"]["code"] == reply.status
    assert document["error"]["type"].endswith("Error")
    return document["error"]


@pytest.mark.parametrize("path", PROMPTS)
@pytest.mark.parametrize(
    ("body", "words"),
    [
        pytest.param(b"", "not JSON", id="nothing"),
        pytest.param(b"{", "not JSON", id="half"),
        pytest.param(b'{"model": "m"} x', "not JSON", id="too much"),
        pytest.param(b'{"model": "\xff\xfe"}', "UTF-8", id="not UTF-8"),
        pytest.param('{"model": "m"}'.encode("utf-16")[:-1], "not JSON", id="half of UTF-16"),
        pytest.param(b"null", "not an object", id="null"),
        pytest.param(b"[1]", "not an object", id="a list"),
        pytest.param(b'{"a":' * 5000 + b"1" + b"}" * 5000, "nested too deeply", id="deep"),
    ],
)
def test_a_prompt_that_is_no_json_object_is_400(path, body, words):
    """No pod is asked."""

    async def case():
        async with House(fine) as house:
            reply = await ask(house.url, "POST", path, body)
            assert reply.status == 400
            assert words in error_of(reply)["message"]
            assert house.pods[0].calls == []

    run(case)


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": 7},
        {"messages": "hi"},
        {"messages": {"role": "user"}},
        {"messages": [1, None, "x", [], {"content": {"a": 1}}, {"role": ["x"], "content": [None]}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": 7}]}]},
        {"prompt": {"a": 1}},
        {"prompt": [[-1, "x"], None]},
        {"prompt": [2**40]},
        {"input": [[1, 2], 3]},
        {"model": 7, "messages": []},
        {"model": None, "stream": "yes", "tools": 3, "system": 5, "cache_salt": []},
        {},
    ],
)
@pytest.mark.parametrize("path", PROMPTS)
def test_fields_of_wrong_types_are_for_the_pod_to_judge(path, fields):
    """It knows what it takes; the router has read what it could."""

    async def case():
        async def judges(call):
            await call.answer(b'{"error":{}}', 422)

        async with House(judges, policy="prefix_cost") as house:
            body = json.dumps(fields).encode()
            assert (await ask(house.url, "POST", path, body)).status == 422
            assert house.pods[0].calls[0].body == body

    run(case)


def test_ten_thousand_messages_are_a_prompt_like_another():
    """Read, placed and passed on."""

    async def case():
        many = [{"role": "user", "content": f"message {n}"} for n in range(10_000)]
        body = json.dumps({"model": "m", "messages": many}).encode()
        async with House(fine, policy="prefix_cost") as house:
            for _ in range(2):
                reply = await ask(house.url, "POST", CHAT, body)
                assert reply.status == 200
            assert int(reply.headers["x-kvbench-predicted-tokens"]) > 40_000

    run(case)


@pytest.mark.parametrize("announced", [True, False])
def test_a_body_of_100_megabytes_is_413_before_it_is_kept(announced):
    """Told at once where its length is announced, else when there is too much of it."""

    async def case():
        async with House(fine) as house:
            client = await Client.to(house.url)
            head = f"POST {CHAT} HTTP/1.1\r\nhost: r\r\n"
            mebibyte = b"x" * 2**20
            if announced:
                client.writer.write(f"{head}content-length: {100 * 2**20}\r\n\r\n".encode())
            else:
                client.writer.write(f"{head}transfer-encoding: chunked\r\n\r\n".encode())
                with contextlib.suppress(ConnectionError):
                    for _ in range(70):
                        client.writer.write(b"100000\r\n" + mebibyte + b"\r\n")
                        await client.writer.drain()
            reply = await client.reply()
            assert reply.status == 413
            assert error_of(reply)["message"] == (
                "Request body too large: at most 64 MiB are taken (--max-body)."
            )
            client.vanish()
            assert (await ask(house.url, "POST", CHAT, chat("hi"))).status == 200
            assert await house.metric("kvbench_router_refusals_total", status="413") == 1

    run(case)


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: -3\r\n\r\n", 400),
        (b"POST /v1/completions HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n", 400),
        (b"POST /v1/chat/completions HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"GET /v1/models HTTP/1.1\r\nx: " + b"y" * 70_000 + b"\r\n\r\n", 431),
        (b"GET /v1/models HTTP/2.0\r\nhost: r\r\n\r\n", 505),
    ],
    ids=["no HTTP", "negative length", "two lengths", "bad chunk", "long head", "another version"],
)  # fmt: skip
def test_what_is_no_http_is_refused_in_the_same_form(raw, status):
    """And the next client is served."""

    async def case():
        async with House(fine) as house:
            client = await Client.to(house.url)
            client.writer.write(raw)
            reply = await client.reply()
            assert reply.status == status
            error_of(reply)
            client.vanish()
            assert (await ask(house.url, "GET", "/v1/models")).status == 200

    run(case)


def test_a_trailer_reaches_no_pod():
    """What a front has looked for in the head must not come behind the body."""

    async def case():
        async with House(fine) as house:
            client = await Client.to(house.url)
            body = chat("hi")
            client.writer.write(
                f"POST {CHAT} HTTP/1.1\r\nhost: r\r\ntransfer-encoding: chunked\r\n\r\n"
                f"{len(body):x}\r\n".encode()
                + body
                + b"\r\n0\r\nx-user: root\r\n\r\n"
            )
            assert (await client.reply()).status == 200
            (call,) = house.pods[0].calls
            assert call.body == body
            assert call.header("x-user") is None
            client.close()

    run(case)


def test_a_client_that_would_rather_speak_http_2_is_served_all_the_same():
    """With its body; a tunnel is refused in OpenAI's form."""

    async def case():
        async with House(fine) as house:
            wish = ("connection: Upgrade, HTTP2-Settings", "upgrade: h2c")
            reply = await ask(house.url, "POST", CHAT, chat("hi"), *wish)
            assert reply.status == 200
            assert house.pods[0].calls[0].body == chat("hi")
            tunnel = await ask(house.url, "CONNECT", "x:443")
            assert (tunnel.status, error_of(tunnel)["type"]) == (405, "MethodNotAllowedError")
            assert len(house.pods[0].calls) == 1

    run(case)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=12,
)
FIELDS = st.sampled_from(
    ["model", "messages", "prompt", "input", "instructions", "system", "tools", "stream", "user",
     "cache_salt", "role", "content", "type", "text", "prompt_cache_key"]
)  # fmt: skip
OBJECTS = st.recursive(
    JSON, lambda inner: st.dictionaries(FIELDS, inner) | st.lists(inner, max_size=4), max_leaves=12
)
BODIES = st.one_of(
    st.binary(max_size=200),
    JSON.map(lambda value: json.dumps(value).encode()),
    st.dictionaries(FIELDS, OBJECTS).map(lambda value: json.dumps(value).encode()),
)
NAMES = st.text("abcdefghijklmnopqrstuvwxyz-", min_size=1, max_size=12)
HEADERS = st.dictionaries(
    NAMES.filter(lambda name: name not in {
        "content-length", "transfer-encoding", "connection", "expect", "upgrade", "host"}),
    st.text(st.characters(min_codepoint=33, max_codepoint=255, exclude_characters="\x7f"),
            max_size=20),
    max_size=4,
)  # fmt: skip
TARGETS = st.one_of(
    st.sampled_from(
        [*PROMPTS, *OTHERS, "*", "/health", "/pods", "/metrics", "/sleep", "/decisions"]
    ),
    st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=20).map("/{}".format),
)
METHODS = st.sampled_from(["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"])


async def answers(call):
    """Answer; a question for the head has no body in its answer."""
    if call.method == "HEAD":
        await call.send(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n")
    else:
        await call.answer()


@settings(max_examples=20)
@given(st.lists(st.tuples(METHODS, TARGETS, HEADERS, BODIES), min_size=1, max_size=12))
def test_whatever_is_asked_is_answered(requests):
    """With an answer of a pod or an error in OpenAI's form, on a connection that goes on."""

    async def case():
        async with House(answers, policy="prefix_cost", allow_policy_header=True) as house:
            client = await Client.to(house.url)
            for method, target, headers, body in requests:
                lines = [f"{name}: {value}" for name, value in headers.items()]
                head = "\r\n".join([f"{method} {target} HTTP/1.1", "host: r", *lines])
                client.writer.write(
                    f"{head}\r\ncontent-length: {len(body)}\r\n\r\n".encode("latin-1") + body
                )
                reply = await client.reply(method)
                if reply.status >= 400 and method != "HEAD":
                    error_of(reply)
                assert reply.status in {200, 400, 404, 405}, target
            client.close()
            await house.quiet()
            assert house.in_flight() == [(0, 0)]

    run(case)


@settings(max_examples=20)
@given(st.lists(st.binary(max_size=300), max_size=6), st.binary(max_size=40))
def test_whatever_bytes_come_nothing_breaks(pieces, tail):
    """In any pieces; the next client is served."""

    async def case():
        async with House(fine) as house:
            client = await Client.to(house.url)
            beginning = f"POST {CHAT} HTTP/1.1\r\nhost: r\r\n".encode()
            with contextlib.suppress(ConnectionError):
                for piece in [beginning, *pieces, tail]:
                    client.writer.write(piece)
                    await client.writer.drain()
                client.writer.write_eof()
                async with asyncio.timeout(5):
                    await client.reader.read()
            client.vanish()
            assert (await ask(house.url, "POST", CHAT, chat("hi"))).status == 200
            await house.quiet()
            assert house.in_flight() == [(0, 0)]

    run(case)


@pytest.mark.parametrize("path", ["/health", "/metrics", "/pods", "/decisions", "/decisions/x"])
@pytest.mark.parametrize("method", ["POST", "DELETE", "PUT", "OPTIONS"])
def test_the_routers_own_pages_are_not_passed_on_with_another_method(method, path):
    """405 in OpenAI's form, and no pod is asked."""

    async def case():
        async with House(fine) as house:
            reply = await ask(house.url, method, path)
            assert reply.status == 405
            error_of(reply)
            assert house.pods[0].calls == []

    run(case)


def test_trace_is_not_passed_on():
    """It would say a key back to whoever made a browser or proxy send it."""

    async def case():
        async with House(fine) as house:
            reply = await ask(house.url, "TRACE", "/v1/models")
            assert reply.status == 405
            assert house.pods[0].calls == []

    run(case)


@pytest.mark.parametrize("policy", ["prefix_cost", "round_robin"])
@pytest.mark.parametrize(
    "extra",
    [b',"foo":"\xff"', b',"\xff":1', b',"metadata":{"a":"\xc3("}'],
    ids=["value", "key", "inside"],
)
def test_a_body_that_is_not_utf_8_anywhere_is_400(policy, extra):
    """Also in what nobody here reads, whatever the policy."""

    async def case():
        async with House(fine, policy=policy) as house:
            body = chat("hi")[:-1] + extra + b"}"
            reply = await ask(house.url, "POST", CHAT, body)
            assert reply.status == 400
            assert "UTF-8" in error_of(reply)["message"]
            assert house.pods[0].calls == []

    run(case)


@pytest.mark.parametrize("path", PROMPTS)
@pytest.mark.parametrize(
    "extra",
    [b'"temperature":NaN', b'"x":[-Infinity]', b'"user":"\\ud800"', b'"metadata":{"a":"\\udc00"}'],
    ids=["NaN", "infinity", "user", "metadata"],
)
def test_what_is_json_for_a_pod_is_passed_on_as_it_came(path, extra):
    """Python reads it, and no model; with a session of its own, as text."""

    async def case():
        async with House(fine, policy="prefix_cost") as house:
            body = chat("hi")[:-1] + b"," + extra + b"}"
            assert (await ask(house.url, "POST", path, body)).status == 200
            assert house.pods[0].calls[0].body == body
            page = await ask(house.url, "GET", "/decisions?limit=1")
            assert len(page.json()["decisions"]) == 1

    run(case)


@pytest.mark.parametrize("half", [r"\ud800", r"\ud800 and more of it, much more", r"\udc00"])
def test_lone_surrogates_are_named_as_what_they_are(half):
    """Nothing was truncated."""

    async def case():
        async with House(fine) as house:
            body = f'{{"model":"m","messages":[{{"role":"user","content":"{half}"}}]}}'
            reply = await ask(house.url, "POST", CHAT, body.encode())
            assert reply.status == 400
            assert "half of a surrogate pair" in error_of(reply)["message"]

    run(case)


def test_a_long_request_id_is_not_kept_whole():
    """The journal has a thousand; the pod is sent all of it."""

    async def case():
        async with House(fine) as house:
            header = "x-request-id: " + "r" * 50_000
            assert (await ask(house.url, "POST", CHAT, chat("hi"), header)).status == 200
            page = await ask(house.url, "GET", "/decisions?limit=1")
            assert page.json()["decisions"][0]["id"] == "r" * 256
            assert house.pods[0].calls[0].header("x-request-id") == "r" * 50_000

    run(case)
