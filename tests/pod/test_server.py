"""The pod over HTTP: the face of a real vLLM, what clients may do, and what they may not."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace
from pathlib import Path

import openai
import pytest
from fakes_pod import TOKENIZER, RunningPod, make_config, read_stream, running_pod, tokenizer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from wire import connected, run, scene, until

from kvbench.clock import WallClock
from kvbench.openai.stream import StreamFold
from kvbench.pod.faults import ILLNESSES
from kvbench.text.compose import Composer
from kvbench.text.degeneration import degeneration
from kvbench.text.tokenizer import Tokenizer

RECORDED = Path(__file__).parent / "recorded"
FACE = [json.loads(line) for line in (RECORDED / "face.jsonl").read_text().splitlines()]
METRICS = json.loads((RECORDED / "metrics.json").read_text())


def masked(text: str) -> str:
    """Return a body without what differs from one answer to the next, as the recordings are."""
    for pattern, stands_for in (
        (r"(chatcmpl|cmpl|modelperm)-[0-9a-f]{16}", r"\1-…"),
        (r"(resp|msg)_[0-9a-f]{16}", r"\1_…"),
        (r'"(created|created_at)":\d+', r'"\1":0'),
        (r"vllm-0\.32\.0-[0-9a-f]{8}", "vllm-0.32.0-…"),
        (r'"(content|text|delta)":"(?:[^"\\]|\\.)*"', r'"\1":"…"'),
        (r'"token_ids":\[[\d,]+\]', '"token_ids":[…]'),
        (r'"root":"[^"]*"', '"root":"…"'),
    ):
        text = re.sub(pattern, stands_for, text)
    return text


async def answer(pod: RunningPod, case: dict) -> tuple[int, dict[str, str], str]:
    """Return status, headers and masked body of the answer to a recorded request."""
    body = None if case["body"] is None else case["body"].encode("latin-1")
    lines = [f"{case['method']} {case['path']} HTTP/1.1", f"Host: 127.0.0.1:{pod.port}"]
    lines += [f"{name}: {value}" for name, value in case["headers"].items()]
    if body is not None:
        if case["content_type"]:
            lines.append(f"Content-Type: {case['content_type']}")
        lines.append(f"Content-Length: {len(body)}")
    async with connected(pod.port) as client:
        client.send("\r\n".join([*lines, "", ""]).encode() + (body or b""))
        got = await client.answer(bodiless=case["method"] == "HEAD")
    left_out = {"date", "content-length", "connection"}
    headers = {name: value for name, value in got.headers.items() if name not in left_out}
    return got.status, headers, masked(got.body.decode())


@pytest.fixture(scope="module")
def answers() -> dict[str, tuple[int, dict[str, str], str]]:
    """Return what a pod answers to the recorded requests."""
    return run(ask_everything())


async def ask_everything() -> dict[str, tuple[int, dict[str, str], str]]:
    """Return the answers to the recorded requests, asked in the order of the recording."""
    async with running_pod() as pod:
        return {case["case"]: await answer(pod, case) for case in FACE}


@pytest.mark.parametrize("case", FACE, ids=lambda case: case["case"])
def test_a_request_is_answered_as_a_real_vllm_answers_it(answers: dict, case: dict):
    """Status, headers and body, key by key."""
    status, headers, body = answers[case["case"]]
    expected = case["answer_headers"]
    expected.pop("transfer-encoding", None)
    headers.pop("transfer-encoding", None)
    assert (status, body) == (case["status"], masked(case["answer"]))
    assert headers == expected


def sample(name: str) -> str:
    """Return the name of a recorded sample as it stands at /metrics."""
    metric, _, label = name.partition(" ")
    labels = {"engine": "0", "model_name": "tiny"}
    if label:
        labels[label.partition("=")[0]] = label.partition("=")[2]
    return metric + "{" + ",".join(f'{k}="{v}"' for k, v in sorted(labels.items())) + "}"


@scene
async def test_usage_and_metrics_move_as_those_of_a_real_vllm():
    """The same chats, and a client that leaves: every count that is not a time is equal."""
    async with running_pod() as pod:
        before = await pod.metrics()
        for chat in METRICS["chats"]:
            text = chat["text"] * chat["times"]
            whole = await pod.chat(text, n=chat["n"], max_tokens=5, ignore_eos=True)
            usage = whole["usage"]
            details = usage["prompt_tokens_details"]
            for key in ("prompt_tokens", "completion_tokens"):
                assert usage[key] == chat[key]
            for key in ("cached_tokens", "created_cache_tokens"):
                assert details[key] == chat[key]
        await leave_early(pod, METRICS["abandoned"])
        after = await pod.metrics()
    grown = {name: after[sample(name)] - before[sample(name)] for name in METRICS["samples"]}
    assert grown == METRICS["samples"]
    assert after[sample("vllm:num_requests_running")] == 0


async def leave_early(pod: RunningPod, text: str) -> None:
    """Ask for a long stream and leave after its first token."""
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 800, "stream": True}
    async with connected(pod.port) as client:
        client.post("/v1/chat/completions", json.dumps(body | {"ignore_eos": True}).encode())
        await client.head()
        for _ in range(3):
            await client.chunk()
    await until(lambda: not pod.pod.driver.engine.has_work)


@scene
async def test_a_client_that_leaves_frees_its_blocks_at_once():
    """Long before its answer would have ended."""
    async with running_pod(make_config(step_s=0.005)) as pod:
        await leave_early(pod, "hello")
        engine = pod.pod.driver.engine
        assert engine.counters.generation_tokens < 100
        assert engine.kv_cache_usage == 0


@scene
async def test_tokens_come_when_the_engine_says():
    """Eight steps of 20 ms each, and the role not before the first token."""
    async with running_pod(make_config(step_s=0.02)) as pod:
        now = WallClock().now
        sent = now()
        fold = await pod.stream("hello", max_tokens=8, ignore_eos=True)
        assert fold.first_token is not None
        assert fold.last_token is not None
        assert fold.first_token - sent >= 0.019
        assert fold.last_token - sent >= 0.159
        assert fold.first_read_chunks == 1
        assert len(fold.chunk_stamps) == 8
        assert pod.pod.driver.lateness.steps == 8


@scene
async def test_what_a_request_costs_outside_the_engine_comes_before_its_first_token():
    """As a calibrated profile says it."""
    config = replace(make_config(), request_s=0.05, request_token_s=0.001)
    async with running_pod(config) as pod:
        now = WallClock().now
        sent = now()
        fold = await pod.stream("hello", max_tokens=2, ignore_eos=True)
        assert fold.first_token is not None
        assert fold.usage is not None
        assert fold.first_token - sent >= 0.05 + 0.001 * fold.usage.prompt_tokens


@scene
async def test_the_conversation_that_echoes_the_answer_hits_the_answers_blocks():
    """The second turn finds in the cache what the first one generated."""
    async with running_pod() as pod:
        first = await pod.stream("tell me", max_tokens=100, ignore_eos=True)
        assert first.usage is not None
        messages = [
            {"role": "user", "content": "tell me"},
            {"role": "assistant", "content": first.text},
            {"role": "user", "content": "go on"},
        ]
        second = await pod.stream("", messages=messages)
        assert second.usage is not None
        known = (first.usage.total_tokens or 0) - 1
        assert second.usage.cached_tokens == known // 32 * 32


@scene
async def test_an_answer_ends_by_itself_unless_asked_not_to():
    """With "stop", the end token counted and not said; `ignore_eos` goes on to the limit."""
    async with running_pod() as pod:
        whole = await pod.chat("hello", max_tokens=900)
        more = await pod.chat("hello", max_tokens=900, ignore_eos=True)
    choice = whole["choices"][0]
    said = len(choice["message"]["content"].split())
    assert choice["finish_reason"] == "stop"
    assert choice["stop_reason"] is None
    assert whole["usage"]["completion_tokens"] == said + 1
    assert more["usage"]["completion_tokens"] == 900


@scene
async def test_a_stop_string_ends_the_answer():
    """What it says before is the beginning of what it would have said."""
    async with running_pod() as pod:
        whole = await pod.chat("hello", max_tokens=50, ignore_eos=True)
        text = whole["choices"][0]["message"]["content"]
        stop = text[20:23]
        cut = await pod.chat("hello", max_tokens=50, ignore_eos=True, stop=[stop])
        fold = await pod.stream("hello", max_tokens=50, ignore_eos=True, stop=stop)
        assert cut["choices"][0]["stop_reason"] == stop
        assert cut["choices"][0]["message"]["content"] == text[: text.index(stop)] == fold.text
        assert fold.finish_reason == "stop"
        assert not pod.pod.driver.engine.has_work


@scene
async def test_a_prompt_leaves_room_for_its_answer_only():
    """More is asked for than fits: the answer ends at the end of the context."""
    async with running_pod() as pod:
        body = {"prompt": [5] * 1020, "max_tokens": 100, "ignore_eos": True}
        whole = json.loads((await pod.post("/v1/completions", body)).body)
    assert whole["usage"]["total_tokens"] == 1024


@scene
async def test_salts_keep_prefixes_apart():
    """The same prompt under another salt finds nothing."""
    text = "hello there " * 30
    async with running_pod() as pod:
        folds = [await pod.stream(text, cache_salt=salt) for salt in ("a", "a", "b")]
    first, again, other = [fold.usage.cached_tokens for fold in folds if fold.usage]
    assert (first, other) == (0, 0)
    assert again > 0


@scene
async def test_a_pod_that_does_not_tell_leaves_cached_tokens_out():
    """Unknown is not 0."""
    async with running_pod(make_config(tells_cached=False)) as pod:
        fold = await pod.stream("hello")
        whole = await pod.chat("hello")
    assert fold.usage is not None
    assert fold.usage.cached_tokens is None
    assert whole["usage"]["prompt_tokens_details"] is None


@scene
async def test_the_cache_can_be_emptied_in_dev_mode_only_and_not_in_use():
    """As with VLLM_SERVER_DEV_MODE=1."""
    text = "hello there " * 30
    async with running_pod(make_config(dev_mode=False)) as pod:
        assert (await pod.post("/reset_prefix_cache", b"")).status == 404
    async with running_pod(make_config(step_s=0.01)) as pod:
        assert (await pod.stream(text)).usage.cached_tokens == 0
        assert (await pod.stream(text)).usage.cached_tokens > 0
        busy = asyncio.ensure_future(pod.stream(text, max_tokens=20, ignore_eos=True))
        await until(lambda: pod.pod.driver.engine.running > 0)
        assert (await pod.post("/reset_prefix_cache", b"")).body == b'{"success":false}'
        await busy
        assert (await pod.post("/reset_prefix_cache", b"")).body == b'{"success":true}'
        assert (await pod.stream(text)).usage.cached_tokens == 0


@scene
async def test_a_long_prompt_is_tokenised_as_a_short_one():
    """In a thread, so that streams go on."""
    text = "word " * 4000
    async with running_pod(make_config(max_model_len=30_000, num_gpu_blocks=1000)) as pod:
        whole = await pod.chat(text)
        body = {"messages": [{"role": "user", "content": text}]}
        counted = json.loads((await pod.post("/tokenize", body)).body)["count"]
    assert whole["usage"]["prompt_tokens"] == counted


@scene
async def test_a_client_that_leaves_while_its_prompt_is_tokenised_starts_nothing():
    """There is nobody to answer."""
    body = {"messages": [{"role": "user", "content": "word " * 100_000}], "stream": True}
    async with running_pod(make_config(max_model_len=6000, num_gpu_blocks=1000)) as pod:
        async with connected(pod.port) as client:
            client.post("/v1/chat/completions", json.dumps(body).encode())
            await until(lambda: pod.pod._requests == 1)
        await pod.get("/health")
        assert not pod.pod.driver.engine.has_work


@scene
async def test_the_metrics_keep_their_colons_whatever_a_scraper_prefers():
    """And with a slash behind."""
    wants = (
        "application/openmetrics-text;version=1.0.0,"
        "application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5"
    )
    async with running_pod() as pod, connected(pod.port) as client:
        for path in ("/metrics", "/metrics/"):
            client.get(path, f"Accept: {wants}\r\n")
            got = await client.answer()
            assert got.headers["content-type"].startswith("text/plain")
            assert b'\nvllm:num_requests_running{engine="0",model_name="tiny"} 0.0\n' in got.body


@scene
async def test_gauges_show_what_is_going_on():
    """One runs, one waits, and the running one holds blocks."""
    async with running_pod(make_config(step_s=0.02, max_num_seqs=1)) as pod:
        both = [
            asyncio.ensure_future(pod.stream(text, max_tokens=10, ignore_eos=True))
            for text in ("one " * 30, "two")
        ]
        await until(lambda: pod.pod.driver.engine.waiting == 1)
        await until(lambda: pod.pod.driver.engine.running == 1)
        seen = await pod.metrics()
        assert seen[sample("vllm:num_requests_running")] == 1
        assert seen[sample("vllm:num_requests_waiting")] == 1
        assert seen[sample("vllm:num_requests_waiting_by_reason reason=capacity")] == 1
        assert 0 < seen[sample("vllm:kv_cache_usage_perc")] < 1
        await asyncio.gather(*both)
        config = next(name for name in seen if name.startswith("vllm:cache_config_info"))
        assert 'block_size="32"' in config
        assert 'num_gpu_blocks="200"' in config


@scene
@pytest.mark.parametrize(("blocks", "told"), [(None, "None"), (200, "200")])
async def test_the_metrics_tell_whether_the_blocks_were_set_by_hand(blocks, told):
    """As vLLM does: "None" where the number came of the memory that there is."""
    async with running_pod(replace(make_config(), num_gpu_blocks_override=blocks)) as pod:
        seen = await pod.metrics()
        config = next(name for name in seen if name.startswith("vllm:cache_config_info"))
        assert f'num_gpu_blocks_override="{told}"' in config


@scene
async def test_the_openai_client_is_served():
    """Chats and completions, streamed and not, models and errors."""
    async with (
        running_pod() as pod,
        openai.AsyncOpenAI(base_url=f"{pod.url}/v1", api_key="none", max_retries=0) as client,
    ):
        assert [model.id async for model in client.models.list()] == ["tiny"]
        messages = [{"role": "user", "content": "hello"}]
        whole = await client.chat.completions.create(model="tiny", messages=messages, max_tokens=5)
        stream = await client.chat.completions.create(
            model="tiny",
            messages=messages,
            max_tokens=5,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        assert text == whole.choices[0].message.content
        assert (
            chunks[-1].usage
            == chunks[-1].usage.__class__(
                **{
                    **whole.usage.to_dict(),
                    "prompt_tokens_details": chunks[-1].usage.prompt_tokens_details,
                }
            )
            or chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
        )
        done = await client.completions.create(model="tiny", prompt="hello", max_tokens=5)
        pieces = await client.completions.create(
            model="tiny", prompt="hello", max_tokens=5, stream=True
        )
        assert "".join([c.choices[0].text async for c in pieces]) == done.choices[0].text
        with pytest.raises(openai.NotFoundError, match="The model `nope` does not exist"):
            await client.chat.completions.create(model="nope", messages=messages)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-10, 2000) | st.floats(allow_nan=True) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
FIELDS = (
    *("messages", "prompt", "model", "max_tokens", "n", "stop", "stream", "stream_options"),
    *("temperature", "cache_salt", "echo", "ignore_eos", "return_token_ids", "seed", "tools"),
    *("stop_token_ids", "logprobs", "request_id", "min_tokens"),
)


async def survive(pod: RunningPod, body: bytes, path: str) -> None:
    """Assert that a body is answered, or refused in one of the two forms."""
    got = await pod.post(path, body)
    assert got.status == 200 or 400 <= got.status < 500, (got.status, body)
    if got.status != 200:
        assert json.loads(got.body).keys() <= {"error", "detail"}


def test_no_body_takes_the_pod_down():
    """Wrong types, missing halves, anything: 4xx in vLLM's form or an answer, and nothing leaks."""
    loop = asyncio.new_event_loop()
    context = running_pod()
    pod = loop.run_until_complete(context.__aenter__())
    good = {"messages": [{"role": "user", "content": "x"}], "prompt": "x", "max_tokens": 2}

    @settings(suppress_health_check=[HealthCheck.too_slow])
    @given(
        st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=4),
        st.integers(0, 30),
        st.sampled_from(["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"]),
    )
    def fuzz(fields: dict, cut: int, path: str) -> None:
        text = json.dumps({**good, **fields}).encode(errors="surrogatepass")
        for body in (text, text[: len(text) - cut]):
            loop.run_until_complete(survive(pod, body, path))

    try:
        fuzz()
        loop.run_until_complete(until(lambda: not pod.pod.driver.engine.has_work))
        assert not pod.pod._live
        assert pod.pod.driver.engine.kv_cache_usage == 0
        assert not pod.pod.driver._receivers
    finally:
        loop.run_until_complete(context.__aexit__(None, None, None))
        loop.close()


@scene
async def test_an_ordered_error_is_an_error():
    """Of the request that was picked, in vLLM's form."""
    async with running_pod(faults=("error:nth=2,status=503",)) as pod:
        answers = [await pod.post("/v1/completions", {"prompt": "x"}) for _ in range(3)]
    assert [got.status for got in answers] == [200, 503, 200]
    assert json.loads(answers[1].body)["error"]["code"] == 503


@scene
async def test_an_ordered_cut_ends_the_stream_without_its_end():
    """After as many tokens as were ordered; the engine is free again."""
    async with running_pod(faults=("cut:after=3",)) as pod:
        fold = await pod.stream("hello", max_tokens=50, ignore_eos=True)
        assert not fold.done
        assert len(fold.chunk_stamps) <= 3
        assert not pod.pod.driver.engine.has_work


@scene
async def test_an_ordered_stall_holds_the_stream_back_and_loses_nothing():
    """All tokens come, the later ones late."""
    async with running_pod(faults=("stall:after=2,seconds=0.1",)) as pod:
        fold = await pod.stream("hello", max_tokens=6, ignore_eos=True)
    assert fold.done
    assert len(fold.chunk_stamps) == 6
    assert fold.chunk_stamps[2] - fold.chunk_stamps[1] > 0.08


@scene
async def test_an_ordered_degenerate_answer_repeats_itself():
    """The same word over and over."""
    async with running_pod(faults=("degenerate",)) as pod:
        fold = await pod.stream("hello", max_tokens=9, ignore_eos=True)
    assert len(set(fold.text.split())) == 1


@scene
@pytest.mark.parametrize("illness", ILLNESSES)
async def test_each_illness_is_found_by_its_name(illness):
    """What the pod injects is what `kvbench.text.degeneration` finds, and a healthy pod is well."""
    text = Composer(tokenizer(), 0).text("said", 150)
    fields = {"max_tokens": 220 if illness == "salad" else 100, "ignore_eos": True}
    async with running_pod(faults=(f"degenerate:kind={illness}",)) as pod:
        fold = await pod.stream(text, **fields)
    async with running_pod() as pod:
        well = await pod.stream(text, **fields)
    assert degeneration(fold.text, text) == illness
    assert degeneration(well.text, text) is None


@scene
async def test_faults_can_be_set_while_the_pod_runs():
    """In dev mode; a fault that is none is refused in vLLM's form."""
    async with running_pod() as pod:
        set_ = await pod.post("/faults", {"faults": ["error:status=429"]})
        assert set_.status == 200
        assert (await pod.post("/v1/completions", {"prompt": "x"})).status == 429
        assert b"error" in (await pod.get("/faults")).body
        assert (await pod.post("/faults", {"faults": ["nonsense"]})).status == 400
        assert (await pod.post("/faults", {"faults": []})).status == 200
        assert (await pod.post("/v1/completions", {"prompt": "x"})).status == 200


@scene
async def test_a_restart_cuts_streams_and_empties_the_cache():
    """And the counters begin at 0."""
    text = "hello there " * 30
    async with running_pod(make_config(step_s=0.005)) as pod:
        await pod.stream(text)
        fold = StreamFold()
        async with connected(pod.port) as client:
            body = {"messages": [{"role": "user", "content": text}], "stream": True}
            client.post("/v1/chat/completions", json.dumps(body).encode())
            await client.head()
            await client.chunk()
            assert (await pod.post("/restart", b"")).status == 200
            await read_stream(client, fold)
        assert not fold.done
        assert (await pod.metrics())[sample("vllm:prompt_tokens_total")] == 0
        assert (await pod.stream(text)).usage.cached_tokens == 0


@scene
async def test_a_path_with_a_slash_too_many_is_redirected():
    """To the host that the client asked."""
    async with running_pod() as pod:
        got = await pod.post("/v1/chat/completions/", {})
    assert got.status == 307
    assert got.headers["location"] == "http://test/v1/chat/completions"


@scene
async def test_the_lateness_can_be_read():
    """For people, and as a metric."""
    async with running_pod() as pod:
        await pod.stream("hello")
        told = json.loads((await pod.get("/debug/lateness")).body)
        assert told["steps"] == (await pod.metrics())["kvbench_pod_steps_total"] == 4


@scene
async def test_the_model_is_the_tokenizers_directory():
    """So that clients on the same machine find it."""
    async with running_pod() as pod:
        model = json.loads((await pod.get("/v1/models")).body)["data"][0]
    assert model["root"] == str(TOKENIZER)
    assert Tokenizer.load(model["root"]).vocab_size == 512
    assert model["max_model_len"] == 1024


@pytest.mark.parametrize(
    ("path", "wanted", "told"),
    [
        ("/v1/chat/completions", "POST", b"Disallowed CORS origin"),
        ("/nowhere", "GET", b"Disallowed CORS origin"),
        ("/v1/models", "TRACE", b"Disallowed CORS origin, method"),
    ],
)
def test_a_page_from_elsewhere_may_not_ask(path: str, wanted: str, told: bytes):
    """As a real vLLM without `--allowed-origins`: what it answers was seen with its own parts."""

    async def case() -> None:
        async with running_pod() as pod, connected(pod.port) as client:
            lines = (
                f"OPTIONS {path} HTTP/1.1", "host: x", "origin: http://a",
                f"access-control-request-method: {wanted}",
                "access-control-request-headers: authorization, content-type",
            )  # fmt: skip
            client.send("\r\n".join([*lines, "", ""]).encode())
            got = await client.answer()
            assert (got.status, got.body) == (400, told)
            assert got.headers["access-control-allow-headers"] == "authorization, content-type"
            assert got.headers["access-control-max-age"] == "600"
            assert "access-control-allow-origin" not in got.headers
            client.send(f"OPTIONS {path} HTTP/1.1\r\nhost: x\r\norigin: http://a\r\n\r\n".encode())
            assert (await client.answer()).status in {404, 405}, "that is no such question"

    run(case())
