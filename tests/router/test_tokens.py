"""A prompt's tokens as the pod will have them: exactly, or not at all."""

from __future__ import annotations

import gzip
import json
import shutil

import pytest
from fakes_text import byte_level, word_piece
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tool_templates import ALL
from vllm_chats import RECORDED, model_of, ours, probes

from kvbench.kvcache.blocks import PromptKeys, block_hashes
from kvbench.router.model_tokens import ModelTokens
from kvbench.router.tokens import PromptTokens, Reading
from kvbench.text.prefix_store import PrefixStore
from kvbench.text.tokenizer import SHIPPED, Tokenizer

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "hello there"}]
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
LONG_CALL = CALL | {"function": {"name": "f", "arguments": "{}" + " " * 60_000}}
TOOL = {"type": "function", "function": {"name": "f"}}


@pytest.fixture
def tokens() -> PromptTokens:
    """A model and its adapter, with kvbench's own tokenizer."""
    known = PromptTokens()
    known.learn({
        "m": {"root": str(SHIPPED), "parent": None},
        "m-lora": {"root": "/adapters/x", "parent": "m"},
    })  # fmt: skip
    return known


def read(tokens: PromptTokens, path: str = CHAT, **fields) -> Reading | None:
    """Return a body laid out."""
    parsed = tokens.parse(path, json.dumps({"model": "m", **fields}).encode())
    return None if parsed is None else tokens.lay_out(parsed)


def exact(reading: Reading, size: int = 4):
    """Return the tokens of what was laid out."""
    return reading.finish(reading.encode(), size)


def test_a_chat_has_the_tokens_that_its_template_gives():
    """The last token is never taken from a cache: blocks that hold it do not count."""
    shipped = Tokenizer.load()
    tokens = PromptTokens()
    tokens.learn({"m": {"root": str(SHIPPED)}})
    ids = shipped.encode_chat(HELLO)
    for size in (1, 2, 3, 4, 64):
        found = exact(read(tokens, messages=HELLO), size)
        assert found.prompt_tokens == len(ids)
        assert list(found.hashes) == block_hashes(ids, size)[: (len(ids) - 1) // size]


@pytest.mark.parametrize("make", [byte_level, word_piece])
def test_a_text_gets_the_special_tokens_of_its_tokenizer(make):
    """Before and behind, as the pod's own tokenizer puts them; not where the client forbids it."""
    from tokenizers.processors import TemplateProcessing

    tokenizer = make()
    tokenizer._backend.post_processor = TemplateProcessing(
        single="<|user|> $A <|end|>",
        special_tokens=[(t, tokenizer._backend.token_to_id(t)) for t in ("<|user|>", "<|end|>")],
    )
    tokens = PromptTokens()
    tokens.models["m"] = ModelTokens("m", tokenizer, PrefixStore(tokenizer))
    for prompt in ("river garden", "river <|end|> garden <|end|>"):
        for special in (True, False):
            ids = tokenizer.encode(prompt, add_special_tokens=special)
            found = exact(read(tokens, TEXT, prompt=prompt, add_special_tokens=special), 1)
            assert found.prompt_tokens == len(ids)
            assert list(found.hashes) == block_hashes(ids, 1)[:-1]


def test_token_ids_are_taken_as_they_are(tokens):
    """And known beginnings of them are not hashed again."""
    ids = list(range(3000))
    for _ in range(2):
        assert list(exact(read(tokens, TEXT, prompt=ids)).hashes) == block_hashes(ids, 4)[:-1]
    assert len(tokens.models["m"].chains(4)) == 2048 / 4


def test_ids_that_are_to_be_generated_from_are_a_prompt_too(tokens):
    """Unless pictures belong to them, whose places in the ids all look alike."""
    ids, path = list(range(100)), "/inference/v1/generate"
    asked = {"token_ids": ids, "sampling_params": {"max_tokens": 1}, "cache_salt": "s"}
    found = exact(read(tokens, path, **asked))
    assert (found.prompt_tokens, list(found.hashes)) == (
        100,
        block_hashes(ids, 4, PromptKeys("s"))[:-1],
    )
    assert read(tokens, path, **asked, features={"mm_hashes": {"image": ["a"]}}) is None


def test_a_response_to_a_long_text_is_laid_out(tokens):
    """Its length is one message, and not so many characters."""
    found = exact(read(tokens, "/v1/responses", input="river " * 1000))
    ids = Tokenizer.load().encode_chat([{"role": "user", "content": "river " * 1000}])
    assert found.prompt_tokens == len(ids)


def test_salt_and_adapter_are_part_of_every_prompt(tokens):
    """An adapter has its base model's tokens and blocks of its own."""
    shipped = Tokenizer.load()
    ids = shipped.encode_chat(HELLO)
    salted = exact(read(tokens, messages=HELLO, cache_salt="s"))
    adapted = exact(read(tokens, messages=HELLO, model="m-lora"))
    assert salted.hashes[0] == block_hashes(ids, 4, PromptKeys("s"))[0]
    assert adapted.hashes[0] == block_hashes(ids, 4, PromptKeys(None, "m-lora"))[0]


def test_parts_of_text_are_a_text_of_as_many_lines(tokens):
    """As a server makes one of them for a template that prints the content."""
    for texts in (["hello there"], ["hello", "there"]):
        parts = [{"role": "user", "content": [{"type": "text", "text": t} for t in texts]}]
        whole = [{"role": "user", "content": "\n".join(texts)}]
        assert exact(read(tokens, messages=parts)) == exact(read(tokens, messages=whole))


@pytest.mark.parametrize(("brackets", "alike"), [("", True), ("[]", False)])
def test_a_template_that_loops_over_parts_must_make_the_same_of_a_text(brackets, alike):
    """A server may hand it a list of one part where the client sent a text."""
    template = (
        "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
        f"{{% for part in m.content %}}{{{{ part.text }}}}{brackets}{{% endfor %}}{{% endif %}}"
        "<|end|>{% endfor %}"
    )
    tokens, tokenizer = PromptTokens(), byte_level(template)
    tokens.models["m"] = ModelTokens("m", tokenizer, PrefixStore(tokenizer))
    part = {"type": "text", "text": "river"}
    for content in ("river", [part]):
        reading = read(tokens, messages=[{"role": "user", "content": content}])
        assert (reading is not None) == alike
    assert read(tokens, messages=[{"role": "user", "content": [part, part]}]) is None


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        {"messages": [{"role": "user", "content": None}]},
        {"messages": [{"role": "function", "content": "x", "name": "f"}, *HELLO]},
        {"messages": HELLO, "prompt_logprobs": 0},
        {"messages": [{"role": "assistant", "content": "x", "tool_calls": [{}]}]},
        {"messages": [{"role": "user", "content": "x", "tool_calls": [CALL]}]},
        {"messages": [{"role": "user", "content": "x", "reasoning": "y"}]},
        {"messages": [{"role": "user", "content": "x", "tool_call_id": "y"}]},
        {"messages": [{"role": "assistant", "content": "x", "tool_calls": [CALL | {"x": 1}]}]},
        {"messages": HELLO, "tools": [{"type": "function"}]},
        {"messages": HELLO, "tools": []},
        {"messages": HELLO, "documents": []},
        {"messages": HELLO, "chat_template": "{{ messages }}"},
        {"messages": HELLO, "chat_template_kwargs": {"tools": []}},
        {"messages": HELLO, "continue_final_message": True},
        {"messages": HELLO, "add_special_tokens": True},
        {"messages": HELLO, "echo": True},
        {"messages": HELLO, "truncate_prompt_tokens": 5},
        {"messages": [{"role": "user", "content": "\ud800"}]},
        {"messages": HELLO, "model": "other"},
        {"messages": HELLO * 2001},
        {"messages": HELLO, "tools": [TOOL] * 2001},
        {"messages": HELLO, "tools": [TOOL | {"x": "y" * 2**19}]},
        {"messages": [{"role": "assistant", "tool_calls": [CALL] * 501}] * 4},
        {"messages": [{"role": "assistant", "tool_calls": [LONG_CALL] * 9}]},
        {"messages": [{"role": "user", "content": "x" * 2**22}]},
        {"messages": 3},
        {},
    ],
)
def test_what_cannot_be_laid_out_for_certain_is_not(tokens, fields):
    """It is routed by estimate."""
    assert read(tokens, **fields) is None


@pytest.mark.parametrize(
    ("path", "fields", "same"),
    [
        (CHAT, {"model": None}, {"model": ""}),
        (CHAT, {"stream": "true"}, {"stream": True}),
        (CHAT, {"stream": 1}, {"stream": True}),
        (CHAT, {"stream": "False"}, {"stream": False}),
        (CHAT, {"stream": None}, {"stream": False}),
        (CHAT, {"add_generation_prompt": 0}, {"add_generation_prompt": False}),
        (CHAT, {"add_generation_prompt": "1"}, {}),
        (CHAT, {"continue_final_message": 0, "echo": "false", "add_special_tokens": "0"}, {}),
        (TEXT, {"add_special_tokens": "false", "echo": None}, {"add_special_tokens": False}),
        (TEXT, {"add_special_tokens": 1}, {}),
    ],
)
def test_switches_may_be_said_in_the_words_that_a_pod_takes_for_them(tokens, path, fields, same):
    """And a model that is null is one that is not named."""
    del tokens.models["m-lora"]
    asks = {"messages": HELLO, "prompt": "hello"}
    found, expected = (read(tokens, path, **asks, **said) for said in (fields, same))
    assert found.prompt == expected.prompt
    assert exact(found) == exact(expected)


@pytest.mark.parametrize(
    "fields",
    [
        {"stream": "on"},
        {"add_generation_prompt": 2},
        {"add_generation_prompt": None},
        {"continue_final_message": "true"},
        {"echo": 1},
        {"model": 7},
    ],
)
def test_other_words_for_a_switch_are_not_known(tokens, fields):
    """Nor are those that say what is not laid out."""
    assert read(tokens, messages=HELLO, **fields) is None


@pytest.mark.parametrize(
    "fields",
    [{"prompt": ["a", "b"]}, {"prompt": [[1, 2]]}, {"prompt": [-1]}, {"prompt": [2**40]}, {}],
)
def test_several_prompts_or_impossible_ids_are_not_laid_out(tokens, fields):
    """Nor is a completion without a prompt."""
    assert read(tokens, TEXT, **fields) is None


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[]", b"[" * 50_000])
def test_what_is_no_json_is_not_laid_out(tokens, body):
    """Whoever refuses it says why."""
    assert tokens.parse(CHAT, body) is None


def test_what_may_want_all_of_its_prompt_computed_is_not_laid_out(tokens):
    """Whatever is cached of it; a pod that says that it used nothing must not be believed."""
    for path, prompt, fields in (
        (TEXT, {"prompt": "river"}, {"echo": True}),
        (TEXT, {"prompt": [1, 2]}, {"prompt_logprobs": 1}),
        ("/inference/v1/generate", {"token_ids": [1]}, {"sampling_params": {"prompt_logprobs": 1}}),
    ):
        assert read(tokens, path, **prompt) is not None
        assert read(tokens, path, **prompt, **fields) is None


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/score"])
def test_paths_whose_prompts_are_laid_out_otherwise_are_not_known(tokens, path):
    """A body of the same shape may mean something else there."""
    assert read(tokens, path, messages=HELLO) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=6,
)
NEARLY = st.fixed_dictionaries(
    {"model": st.just("m")},
    optional={
        "messages": JSON | st.lists(
            st.fixed_dictionaries({"role": JSON, "content": JSON | st.text()}), max_size=3
        ),
        "prompt": JSON | st.lists(st.integers(-2, 2**33)),
        "input": JSON | st.lists(
            st.fixed_dictionaries({"type": JSON, "role": JSON, "content": JSON}), max_size=2
        ),
        "tools": JSON, "tool_choice": JSON, "chat_template_kwargs": JSON,
        "cache_salt": JSON, "stream": JSON, "user": JSON,
        "add_special_tokens": JSON, "add_generation_prompt": JSON,
    },
)  # fmt: skip


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=NEARLY, path=st.sampled_from([CHAT, TEXT, "/v1/messages", "/v1/responses"]))
def test_whatever_is_asked_is_laid_out_or_not_and_nothing_breaks(tokens, body, path):
    """What is laid out has as many hashes as whole blocks before its last token."""
    reading = read(tokens, path, **body)
    if reading is not None:
        found = exact(reading)
        assert len(found.hashes) == max(found.prompt_tokens - 1, 0) // 4


def test_a_model_is_given_up_when_the_pod_counts_otherwise_again_and_again(tokens, caplog):
    """Three times, and more than one in a hundred; it is named with the first difference."""
    model = tokens.models["m"]
    for _ in range(250):
        assert model.count(10, 10)
    assert not model.count(10, 12)
    assert not model.count(10, 12)
    assert model.trouble is None
    assert not model.count(10, 12)
    assert "counted 12 prompt tokens where ours are 10" in model.trouble
    assert "m is routed by estimate from now on" in caplog.text
    assert read(tokens, messages=HELLO) is None
    assert read(tokens, messages=HELLO, model="m-lora") is not None


def test_a_few_miscounts_among_many_are_no_reason(tokens):
    """Something odd in one request in a thousand is not the tokenizer."""
    model = tokens.models["m"]
    for number in range(3000):
        model.count(10, 12 if number % 1000 == 999 else 10)
    assert (model.trouble, model.of("").miscounted) == (None, 3)


def test_what_was_recorded_of_a_real_vllm_is_what_is_laid_out():
    """Token by token, or not at all; what it refused is not laid out."""
    models = {name: model_of(template) for name, template in ALL.items()}
    exact = all_of_them = 0
    for line in gzip.decompress(RECORDED.read_bytes()).splitlines():
        name, path, body, ids = json.loads(line)
        found = ours(models[name], path, body, ids)
        assert found in {None, None if ids is None else tuple(ids)}, (name, body)
        exact += found is not None
        all_of_them += ids is not None
    assert exact > 0.7 * all_of_them > 200


def with_template(template: str) -> PromptTokens:
    """Return a model with a byte-level tokenizer and this template."""
    tokens, tokenizer = PromptTokens(), byte_level(template)
    tokens.models["m"] = ModelTokens("m", tokenizer, PrefixStore(tokenizer))
    return tokens


def test_tools_of_which_none_may_be_called_are_there_unless_a_pod_leaves_them_out(caplog):
    """It does so if it is told to: then the prompt must be the same with them and without."""
    for template, alike in (("{{ messages[0].content }}", True), ("{{ tools | length }}", False)):
        tokens = with_template(template)
        for path, asks in (
            (CHAT, {"messages": HELLO, "tools": [TOOL], "tool_choice": "none"}),
            (
                "/v1/messages",
                {
                    "messages": HELLO,
                    "tools": [{"name": "f", "input_schema": {}}],
                    "tool_choice": {"type": "none"},
                },
            ),
            (
                "/v1/responses",
                {
                    "input": HELLO,
                    "tools": [{"type": "function", "name": "f"}],
                    "tool_choice": "none",
                },
            ),
        ):
            tokens.models["m"].trust.clear()
            assert read(tokens, path, **asks).form == "none"
            assert read(tokens, path, **(asks | {"tool_choice": None})).form != "none"
            for _ in range(3):
                tokens.models["m"].count(10, 12, "none")
            assert "of which none may be called) is routed by estimate" in caplog.text
            assert (read(tokens, path, **asks) is not None) == alike
            assert read(tokens, path, **(asks | {"tool_choice": None})) is not None


def test_what_a_client_hands_to_the_template_is_handed_on():
    """But what it leaves to the server; and who says how hard to think wants thoughts."""
    tokens = with_template("{{ enable_thinking }}{{ reasoning_effort }}{{ x is defined }}<|end|>")
    for fields, text in (
        ({"chat_template_kwargs": {"enable_thinking": False}}, "FalseFalse"),
        ({"chat_template_kwargs": {"x": None, "enable_thinking": "auto"}}, "False"),
        ({"reasoning_effort": "none"}, "FalsenoneFalse"),
        ({"reasoning_effort": "low", "chat_template_kwargs": {"x": 0}}, "TruelowTrue"),
        (
            {"reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": None}},
            "lowFalse",
        ),
    ):
        reading = read(tokens, messages=HELLO, **fields)
        assert reading.lookup.text == f"{text}<|end|>"


def test_a_form_that_is_miscounted_is_given_up_alone(tokens, caplog):
    """Chats without tools stay exact; but nothing does where the plain form is wrong."""
    model = tokens.models["m"]
    asks = {"messages": HELLO, "tools": [TOOL]}
    assert (read(tokens, messages=HELLO).form, read(tokens, **asks).form) == ("", "tools")
    for _ in range(3):
        model.count(10, 12, "tools")
    assert "m (chats with tools, thoughts or template arguments) is routed by" in caplog.text
    assert read(tokens, **asks) is None
    assert read(tokens, messages=HELLO) is not None
    model.distrust("it is another one")
    assert read(tokens, messages=HELLO) is None


@pytest.mark.parametrize("parts", [False, True])
def test_a_pod_that_is_met_shows_how_it_hands_over_contents(parts):
    """Before, both ways must come out alike; after, one is known."""
    loop = "{% for part in m.content %}{{ part.text }}-{% endfor %}"
    tokens = with_template(
        "{% for m in messages %}{% if m.content is string %}{{ m.content }}"
        "{% else %}" + loop + "{% endif %}<|end|>{% endfor %}"
    )
    model, asks = tokens.models["m"], {"messages": HELLO}
    assert read(tokens, **asks) is None
    text = "What is 7 × 6?-Be quick.-<|end|>" if parts else "What is 7 × 6?\nBe quick.<|end|>"
    _, body = probes()[0]
    model.met(json.dumps(body).encode(), model.tokenizer.encode(text))
    assert read(tokens, **asks).lookup.text == "hello there" + "-" * parts + "<|end|>"


def test_a_pod_that_lays_out_tools_otherwise_is_not_foretold(tokens, caplog):
    """Chats without them are, and what becomes of responses and messages without them."""
    _, body = probes()[1]
    tokens.models["m"].met(json.dumps(body).encode(), [1, 2, 3])
    assert "the pod makes other tokens of a probe" in caplog.text
    for path, body, tool in (
        (CHAT, {"messages": HELLO}, TOOL),
        ("/v1/responses", {"input": HELLO}, {"type": "function", "name": "f"}),
        ("/v1/messages", {"messages": HELLO}, {"name": "f", "input_schema": {}}),
    ):
        assert read(tokens, path, **body, tools=[tool]) is None
        assert read(tokens, path, **body) is not None


def test_a_probe_that_our_template_refuses_says_nothing():
    """A pod that makes something of it has another one."""
    tokens = with_template("{{ raise_exception('no') if tools else 'x' }}")
    _, body = probes()[1]
    tokens.models["m"].met(json.dumps(body).encode(), [1, 2, 3])
    assert tokens.models["m"].of("tools").trouble is not None


def test_models_whose_tokenizer_is_not_here_are_not_known(tmp_path):
    """A name on a hub, a directory of another machine, a broken file; asked for once."""
    (tmp_path / "tokenizer.json").write_text("nonsense")
    tokens = PromptTokens()
    entries = {"hub": {"root": "org/name"}, "broken": {"root": str(tmp_path)}, "bare": {}}
    assert tokens.learn(entries) == []
    assert tokens.knows(entries)
    assert not tokens.knows(["new"])


@pytest.mark.parametrize(("config", "known"), [("gpt_oss", False), ("llama", True), (3, True)])
def test_chats_that_no_template_makes_are_not_known(tmp_path, config, known):
    """Of gpt-oss a server makes them itself, though its `/tokenize` asks the template."""
    shutil.copytree(SHIPPED, tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text(json.dumps({"model_type": config}))
    tokens = PromptTokens()
    tokens.learn({"m": {"root": str(tmp_path / "model")}})
    assert (read(tokens, messages=HELLO) is not None) == known
    assert read(tokens, TEXT, prompt="hello") is not None


def test_a_tokenizer_that_is_given_serves_every_model():
    """Whatever their roots are."""
    tokens = PromptTokens(SHIPPED)
    tokens.learn({"hub": {"root": "org/name"}})
    assert read(tokens, messages=HELLO, model="hub") is not None
    assert read(tokens, messages=HELLO, model="") is not None
