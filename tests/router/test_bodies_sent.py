"""Requests whose bodies are not plain JSON, on their way through the router."""

from __future__ import annotations

import gzip
import json

import pytest
from router.fakes import CHAT, Client, House, ask, chat, fine, run, until

from kvbench.router import bodies

FORM = "content-type: multipart/form-data; boundary=XX"


def upload(model: str) -> bytes:
    """Return a form with a file and the name of a model."""
    sound = bytes(range(256)) * 40
    return (
        b'--XX\r\ncontent-disposition: form-data; name="file"; filename="a.wav"\r\n\r\n%b\r\n'
        b'--XX\r\ncontent-disposition: form-data; name="model"\r\n\r\n%b\r\n--XX--\r\n'
    ) % (sound, model.encode())


@pytest.mark.parametrize(
    ("how", "pack"),
    [("gzip", gzip.compress), ("zstd", bodies.zstd.compress)],
)
@pytest.mark.parametrize("path", [CHAT, "/v1/responses", "/v1/embeddings"])
def test_a_compressed_body_reaches_the_pod_plain(how, pack, path):
    """No vLLM would read it; the prompt is routed as if it had come plain."""

    async def case():
        async with House(fine) as house:
            body = chat("the river " * 300)
            reply = await ask(house.url, "POST", path, pack(body), f"content-encoding: {how}")
            assert reply.status == 200
            (call,) = house.pods[0].calls
            assert call.body == body
            assert call.header("content-encoding") is None
            assert call.header("content-length") == str(len(body))
            if path == CHAT:
                (entry,) = (await ask(house.url, "GET", "/decisions")).json()["decisions"]
                assert entry["prompt_tokens"] > 500

    run(case)


@pytest.mark.parametrize(
    ("how", "body", "status"),
    [
        pytest.param("br", b"x", 415, id="unknown"),
        pytest.param("gzip", b"no gzip", 400, id="damaged"),
        pytest.param("gzip", gzip.compress(b"\0" * 3_000_000), 413, id="too large"),
        pytest.param("gzip", gzip.compress(b"no JSON"), 400, id="no JSON"),
    ],
)
def test_what_cannot_be_unpacked_reaches_no_pod(how, body, status):
    """And the connection goes on."""

    async def case():
        async with House(fine, max_body=2**20) as house:
            client = await Client.to(house.url)
            reply = await client.ask("POST", CHAT, body, f"content-encoding: {how}")
            assert reply.status == status
            assert reply.json()["error"]["code"] == status
            assert ("accept-encoding" in reply.headers) == (status == 415)
            assert (await client.ask("POST", CHAT, chat("hi"))).status == 200
            client.close()
            assert len(house.pods[0].calls) == 1

    run(case)


def test_what_is_unpacked_counts_in_what_the_router_holds():
    """A hundred small bodies that become large are as much as a hundred large ones."""

    async def case():
        async def keeps(call):
            await call.gone()

        async with House(keeps, max_body=2**20) as house:
            server = house.router._server
            body = gzip.compress(chat("x" * 900_000))
            client = await Client.to(house.url)
            client.send("POST", CHAT, body, "content-encoding: gzip")
            await house.pods[0].arrivals.get()
            assert server.held > 900_000
            client.vanish()
            await house.quiet()
            await until(lambda: server.held == 0)
            server.held = server.limits.max_held  # others' bodies, which nobody lets go of
            other = await ask(house.url, "POST", CHAT, body, "content-encoding: gzip")
            assert other.status == 503
            assert len(house.pods[0].calls) == 1

    run(case)


def test_an_upload_goes_to_a_pod_that_serves_its_model():
    """The model stands in a form; the form reaches the pod byte for byte."""

    async def case():
        async with House(fine, fine, probe_every_s=0.005) as house:
            llama, whisper = house.pods
            llama.models, whisper.models = ["llama"], ["org/whisper"]
            await house.known()
            for _ in range(6):
                path, body = "/v1/audio/transcriptions", upload("org/whisper")
                reply = await ask(house.url, "POST", path, body, FORM)
                assert reply.headers["x-kvbench-pod"] == whisper.name
            assert {call.body for call in whisper.calls} == {body}
            unknown = await ask(house.url, "POST", path, upload("parakeet"), FORM)
            assert unknown.status == 404
            assert "`parakeet` does not exist" in unknown.json()["error"]["message"]
            nameless = await ask(house.url, "POST", path, json.dumps({"a": 1}).encode(), FORM)
            assert nameless.status == 200

    run(case)


def test_the_mark_that_some_editors_put_before_a_text_is_taken_off():
    """A byte order mark says nothing in UTF-8; vLLM reads past it, and other servers may not."""

    async def case():
        async with House(fine, fine, probe_every_s=0.005) as house:
            one, two = house.pods
            one.models, two.models = ["m"], ["n"]
            await house.known()
            for path in (CHAT, "/v1/embeddings"):
                reply = await ask(house.url, "POST", path, b"\xef\xbb\xbf" + chat("hi"))
                assert reply.headers["x-kvbench-pod"] == one.name
            assert one.calls[0].body == chat("hi")

    run(case)


@pytest.mark.parametrize("coding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-8-sig"])
def test_a_prompt_in_wider_characters_reaches_the_pod_in_utf_8(coding):
    """Real vLLM reads JSON in all of these; not every server does."""

    async def case():
        async with House(fine) as house:
            text = json.dumps({"model": "m", "prompt": "größe"}, ensure_ascii=False)
            reply = await ask(house.url, "POST", "/v1/completions", text.encode(coding))
            assert reply.status == 200
            (call,) = house.pods[0].calls
            assert call.body.decode() == text
            assert call.header("content-length") == str(len(call.body))

    run(case)


def test_token_ids_to_generate_from_go_where_they_are_cached():
    """As prompts by any other name do."""

    async def case():
        async with House(fine, fine, policy="prefix_estimate") as house:
            body = json.dumps({"model": "m", "token_ids": list(range(1000))}).encode()
            pods = set()
            for _ in range(6):
                reply = await ask(house.url, "POST", "/inference/v1/generate", body)
                pods.add(reply.headers["x-kvbench-pod"])
            assert len(pods) == 1
            assert int(reply.headers["x-kvbench-predicted-tokens"]) > 900

    run(case)


@pytest.mark.parametrize("policy", ["prefix_estimate", "prefix_cost"])
def test_a_pod_that_computes_all_of_a_prompt_is_not_taken_to_have_lost_it(policy):
    """Probabilities of a prompt are not cached; its next reader finds it all the same."""

    async def counts(call):
        cached = 0 if b"prompt_logprobs" in call.body else 448
        usage = {"prompt_tokens": 500, "prompt_tokens_details": {"cached_tokens": cached}}
        await call.answer(json.dumps({"usage": usage}).encode())

    async def case():
        async with House(counts, policy=policy) as house:
            body = "the river " * 200

            async def asked(**fields):
                reply = await ask(house.url, "POST", CHAT, chat(body, **fields))
                return int(reply.headers["x-kvbench-predicted-tokens"])

            await asked()
            before = await asked()
            for _ in range(5):
                await asked(prompt_logprobs=1)
            assert await asked() == before > 400
            (entry, *_) = (await ask(house.url, "GET", "/decisions")).json()["decisions"]
            assert entry["cached_tokens"] == 448

    run(case)
