"""Bodies as policies see them."""

from __future__ import annotations

import contextlib
import json

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.router.keys import PIECE, BodyError, BytesPerToken, Prompt, read_model, read_prompt


def chat(*messages: object, **fields: object) -> Prompt:
    """Read a chat of these messages."""
    return read_prompt(json.dumps({"model": "m", "messages": messages, **fields}).encode())


def user(content: object, role: str = "user", **fields: object) -> dict[str, object]:
    """Return a message."""
    return {"role": role, "content": content, **fields}


def shared(one: Prompt, other: Prompt) -> int:
    """Return how many keys two prompts share, and that they share none behind those."""
    count = 0
    for a, b in zip(one.keys, other.keys, strict=False):
        if a != b:
            break
        count += 1
    assert not set(one.keys[count:]) & set(other.keys[count:])
    return count


LONG = "The quick brown fox jumps over the lazy dog. " * 40  # 1,800 bytes

messages = st.lists(
    st.builds(user, st.text(max_size=400), st.sampled_from(["system", "user", "assistant"])),
    max_size=6,
)


@given(messages, messages)
def test_a_turn_that_extends_a_conversation_extends_its_chain(before, after):
    """Whatever was said, in whatever alphabet."""
    short, long = chat(*before), chat(*before, *after)

    assert long.keys[: len(short.keys)] == short.keys
    assert len(short.keys) == short.size // PIECE


@given(st.integers(0, 1799))
def test_prompts_share_keys_exactly_as_far_as_their_text_is_the_same(place):
    """The piece in which they differ, and all behind it, have other keys."""
    other = LONG[:place] + "#" + LONG[place + 1 :]
    head = len("\x02user\x03")

    assert shared(chat(user(LONG)), chat(user(other))) == (head + place) // PIECE


@given(length=st.integers(0, 20 * PIECE), shared=st.integers(0, 20 * PIECE))
def test_a_long_beginning_that_is_known_has_the_keys_that_it_had(length, shared):
    """Each key is the digest of its piece, seeded with the key before it, however often it came."""
    whole = "".join(chr(97 + n * n % 26) for n in range(20 * PIECE))
    text = whole[:shared] + whole[shared:][::-1][:length]

    def plain() -> tuple[int, ...]:
        data = f"\x02user\x03{text}".encode()
        keys = [xxhash.xxh3_64_intdigest(b"chat\x1fm\x1fNone")]
        for start in range(0, len(data) // PIECE * PIECE, PIECE):
            keys.append(xxhash.xxh3_64_intdigest(data[start : start + PIECE], keys[-1]))
        return tuple(keys[1:])

    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}).encode()

    assert read_prompt(body).keys == read_prompt(body).keys == plain()


@settings(max_examples=25)
@given(st.lists(st.integers(0, 2**32 - 1), min_size=129, max_size=200), st.integers(0, 128))
def test_token_ids_have_a_key_for_each_64_and_their_values_count(ids, place):
    """Prompts of equal length are not equal prompts."""
    other = [*ids[:place], ids[place] ^ 1, *ids[place + 1 :]]
    one, two = (read_prompt(json.dumps({"prompt": p}).encode()) for p in (ids, other))

    assert len(one.keys) == len(ids) // 64
    assert shared(one, two) == place // 64
    request = one.request("r", "", 4.0)
    assert (request.prompt_tokens, request.block_tokens) == (len(ids), 64)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(chat(user(LONG), model="n"), id="another model"),
        pytest.param(chat(user(LONG), cache_salt="s"), id="a cache salt"),
        pytest.param(chat(user(LONG, "assistant")), id="another role"),
        pytest.param(chat(user(LONG), tools=[{"type": "function"}]), id="tools"),
        pytest.param(
            read_prompt(json.dumps({"model": "m", "prompt": LONG}).encode()), id="no chat"
        ),
    ],
)
def test_prompts_that_may_not_share_a_cache_share_no_key(other):
    """Already the first key differs."""
    assert shared(chat(user(LONG)), other) == 0


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(
            user(LONG), user([{"type": "text", "text": LONG}]), id="a text as a list of one part"
        ),
        pytest.param(
            user(LONG), user(LONG, tool_calls=None, refusal=None), id="fields that say nothing"
        ),
        pytest.param(
            user(LONG, tool_calls=[{"id": "a", "type": "f"}]),
            user(LONG, tool_calls=[{"type": "f", "id": "a"}]),
            id="the order of keys",
        ),
    ],
)
def test_what_a_template_renders_alike_has_the_same_keys(one, other):
    """The wire's form does not matter."""
    assert chat(one, user("next")) == chat(other, user("next"))


@given(messages, st.sampled_from([None, "m", ""]), st.sampled_from([None, "salt"]))
def test_a_plain_chat_is_read_faster_and_as_any_other(said, model, salt):
    """A field more in the last message, which says nothing, has it read the long way."""
    fields = {"model": model, "cache_salt": salt, "stream": True, "user": "u"}
    plain = {name: value for name, value in fields.items() if value is not None}
    odd = [*said, user(LONG, name=None)]

    def read(messages):
        return read_prompt(json.dumps({**plain, "messages": messages}).encode())

    assert read([*said, user(LONG)]) == read(odd)


def test_an_image_counts_by_its_digest():
    """Its base64 is no prompt text, but another image is another prompt."""

    def picture(data):
        return user([{"type": "image_url", "image_url": {"url": data}}, {"text": LONG}])

    one, same, other = (chat(picture(data * 10_000)) for data in "aab")

    assert one == same
    assert shared(one, other) == 0
    assert one.size < 2000


def test_a_text_prompt_and_a_list_of_one_are_the_same():
    """As a batch of one is a prompt. Of more, the first decides where they go together."""
    one, batch, two = (
        read_prompt(json.dumps({"prompt": p}).encode()) for p in (LONG, [LONG], [LONG, LONG])
    )

    assert one == batch
    assert (two.keys, two.size) == (one.keys, 2 * one.size)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        pytest.param(b"", "is not JSON", id="empty"),
        pytest.param(b"{'a': 1}", "is not JSON", id="not JSON"),
        pytest.param(b'{"a": 1} more', "trailing characters", id="more than JSON"),
        pytest.param(b'{"model": "\xff"}', "UTF-8", id="not UTF-8"),
        pytest.param(b"[1, 2]", "not an object", id="no object"),
        pytest.param(b'{"messages":' + b"[" * 100_000, "nested too deeply", id="nested too deeply"),
    ],
)
def test_what_is_no_json_object_is_refused_with_a_sentence(body, words):
    """Before a pod is asked."""
    with pytest.raises(BodyError, match=words):
        read_prompt(body)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"messages": None},
        {"messages": "hello"},
        {"messages": {"role": "user"}},
        {"prompt": None},
        {"prompt": []},
        {"prompt": [None]},
        {"prompt": [1, "a"]},
        {"prompt": [1, -2]},
        {"prompt": [1.5]},
        {"prompt": [2**32]},
        {"prompt": 12},
        {"model": 7, "stream": "yes", "user": ["x"], "cache_salt": 3},
    ],
)
def test_an_unknown_shape_has_no_keys_and_is_passed_on(fields):
    """It is for the pod to judge."""
    prompt = read_prompt(json.dumps(fields).encode())

    assert (prompt.keys, prompt.stream, prompt.session) == ((), False, None)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(
                    ["messages", "prompt", "tools", "role", "content", "text", "model"]
                ),
                inner,
            )
        ),
        max_leaves=12,
    )
)
def test_any_json_is_read_or_refused(document):
    """Nothing else can happen."""
    body = json.dumps(document).encode()
    if isinstance(document, dict):
        assert len(read_prompt(body).keys) <= len(body)
    else:
        with pytest.raises(BodyError):
            read_prompt(body)


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(body):
    """Nothing else can happen."""
    with contextlib.suppress(BodyError):
        read_prompt(body)


def test_ten_thousand_messages_are_read():
    """And chained: 13 bytes of content and 6 around it, each."""
    prompt = chat(*[user(f"message {i:04}!") for i in range(10_000)])

    assert prompt.size == 10_000 * 19
    assert len(prompt.keys) == 190_000 // PIECE


def test_there_is_a_bound_on_keys_but_not_on_size():
    """2 MiB of text have all the keys that there will be."""
    prompt = chat(user("x" * (4 * 2**20)))

    assert len(prompt.keys) == 8192
    assert prompt.size > 4 * 2**20


def test_a_session_is_what_the_header_says_else_the_body():
    """`prompt_cache_key` before `user`."""
    keyed = chat(user("hi"), prompt_cache_key="k", user="u")

    assert keyed.request("r", "", 4.0).session == "k"
    assert keyed.request("r", "h", 4.0).session == "h"
    assert chat(user("hi"), user="u").request("r", "", 4.0).session == "u"
    assert chat(user("hi")).request("r", "", 4.0).session is None


def test_what_is_said_of_a_session_in_a_prompt_is_not_its_session():
    """Fields are the body's own: neither those of a message nor words in its text."""
    said = 'my "user": "eve", "prompt_cache_key": "k"'
    for message in (user(said), user(LONG, user="eve"), user([{"type": "text", "text": said}])):
        assert chat(message).request("r", "", 4.0).session is None
    assert chat(user(said), user="ann").request("r", "", 4.0).session == "ann"


def test_tokens_are_estimated_by_what_pods_have_counted():
    """4 bytes a token until the first count, then the model's own."""
    ratios = BytesPerToken()
    prompt = chat(user("x" * 5994))  # 6,000 bytes with the role

    before = prompt.request("r", "", ratios.of("m"))
    ratios.learn("m", 6000, 1000)
    after = prompt.request("r", "", ratios.of("m"))

    assert (before.prompt_tokens, before.block_tokens) == (1500, 64)
    assert (after.prompt_tokens, after.block_tokens) == (1000, 43)
    assert ratios.of("another") == 4.0
    ratios.learn("m", 6000, 2000)
    assert ratios.of("m") == pytest.approx(6 - 0.05 * 3)
    ratios.learn("m", 10, 10)
    assert ratios.of("m") == pytest.approx(6 - 0.05 * 3), "short prompts are mostly template"


def test_the_same_chat_has_the_same_chain_in_every_apis_form():
    """What is said to the system first, in a field of its own or as a message."""
    as_chat = chat(user(LONG, "system"), user("hi"), user(LONG, "assistant"))
    turns = [user("hi"), user(LONG, "assistant")]
    as_message = chat(*turns, system=LONG)
    blocks = chat(*turns, system=[{"type": "text", "text": LONG, "cache_control": {}}])
    as_response = read_prompt(
        json.dumps({"model": "m", "instructions": LONG, "input": turns}).encode()
    )

    assert len(as_chat.keys) > 10
    assert as_chat.keys == as_message.keys == blocks.keys == as_response.keys
    assert as_chat.size == as_response.size


def test_a_response_may_be_asked_for_with_a_plain_text():
    """It is what the user says."""
    plain, spelt = (
        read_prompt(json.dumps({"model": "m", "input": value}).encode())
        for value in (LONG, [user(LONG)])
    )

    assert plain == spelt
    assert len(plain.keys) == 7


def test_what_stands_beside_a_text_prompt_changes_nothing():
    """A completion has no messages, whatever else it has."""
    prompt = read_prompt(json.dumps({"prompt": LONG, "input": "x", "system": "y"}).encode())

    assert prompt.keys == read_prompt(json.dumps({"prompt": LONG}).encode()).keys


def test_a_response_that_continues_another_shares_no_beginning_with_those_that_do_not():
    """Its beginning is on the pod, and not in its body."""
    fields = {"model": "m", "input": LONG}
    alone, after_a, after_b = (
        read_prompt(json.dumps({**fields, **more}).encode())
        for more in ({}, {"previous_response_id": "a"}, {"previous_response_id": "b"})
    )

    assert shared(alone, after_a) == shared(after_a, after_b) == 0
    assert after_a.size == alone.size


def test_a_prompt_of_token_ids_may_be_called_otherwise():
    """And pictures, whose places in it look alike, keep prompts apart."""
    ids = list(range(300))
    plain = read_prompt(json.dumps({"prompt": ids}).encode())
    assert read_prompt(json.dumps({"token_ids": ids, "features": None}).encode()) == plain
    pictures = [{"mm_hashes": {"image": [name]}} for name in "aab"]
    one, same, other = (
        read_prompt(json.dumps({"token_ids": ids, "features": some}).encode()) for some in pictures
    )
    assert one == same
    assert one.counted
    assert not set(one.keys) & {*plain.keys, *other.keys}


@pytest.mark.parametrize("extra", [{}, {"seed": 2**70, "tools": []}])
def test_a_session_in_the_body_goes_by_its_own_name_first(extra):
    """Then by OpenAI's key for caches, then by the user."""
    names = [("session_id", "s"), ("prompt_cache_key", "k"), ("user", "u")]
    for first in range(3):
        body = {"messages": [{"role": "user", "content": "hi"}], **dict(names[first:]), **extra}
        assert read_prompt(json.dumps(body).encode()).session == names[first][1]


def test_an_agents_next_turn_extends_its_last_whatever_it_says_to_servers():
    """Claude Code's billing block has another hash each time; its marks roll on turn by turn."""

    def turn(number: int) -> Prompt:
        mark = {"cache_control": {"type": "ephemeral"}}
        messages = []
        for index in range(number):
            asked = {"type": "tool_use", "id": f"t{index}", "name": "read", "input": {"path": "a"}}
            found = {"type": "tool_result", "tool_use_id": f"t{index}", "content": LONG}
            last = mark if index == number - 1 else {}
            messages += [
                {"role": "assistant", "content": [asked]},
                {"role": "user", "content": [found | last], **last},
            ]
        billing = f"x-anthropic-billing-header: cc_version=2.1.1; cch={number}aa;"
        system = [{"type": "text", "text": text} for text in (billing, LONG)]
        body = {"model": "m", "system": system, "messages": messages}
        return read_prompt(json.dumps(body).encode())

    one, two, three = map(turn, (1, 2, 3))
    assert one.keys == two.keys[: len(one.keys)]
    assert two.keys == three.keys[: len(two.keys)]
    assert len(one.keys) >= 2 * len(LONG) // PIECE
    assert three.size > 4 * len(LONG)


def test_a_picture_that_a_tool_gave_counts_by_its_digest_among_text():
    """A screenshot is no prompt text; what stands around it is."""

    def result(data):
        picture = {"type": "image", "source": {"type": "base64", "data": data * 100_000}}
        part = {"type": "tool_result", "content": [{"type": "text", "text": LONG}, picture]}
        return chat(user([part]))

    one, same, other = map(result, "aab")
    assert one == same
    assert len(LONG) < one.size < 2 * len(LONG)
    assert one.keys[:-1] == other.keys[:-1]
    thought = chat(user([{"type": "thinking", "thinking": LONG}], "assistant"))
    assert thought.size > len(LONG)


MIB = 2**20


@pytest.mark.parametrize(
    ("fields", "piece", "count"),
    [
        pytest.param(b'"prompt":', b"[1],", 140_000, id="lists"),
        pytest.param(b'"prompt":', b'"a",', 800_000, id="texts"),
        pytest.param(b'"messages":', b"{},", 190_000, id="messages"),
        pytest.param(b'"messages":', b'{"role":"user","content":"a"},', 110_000, id="real ones"),
        pytest.param(b'"prompt":', b"1,", 2_100_000, id="more ids than a window"),
    ],
)
def test_of_a_body_that_is_nothing_but_many_values_only_the_model_is_read(fields, piece, count):
    """Reading the rest would take seconds, in which nobody else is served; it is the pod's."""
    body = b'{"model":"m",' + fields + b"[" + piece * count + piece[:-1] + b"]}"
    prompt = read_prompt(body)

    assert (prompt.model, prompt.keys, prompt.size) == ("m", (), 0)
    with pytest.raises(BodyError, match="not JSON"):
        read_prompt(body[:-1])
    with pytest.raises(BodyError, match="JSON, but not an object"):
        read_prompt(b"[" + body + b"]")


def test_of_a_models_name_no_more_is_kept_than_a_path_may_have():
    """The journal has a thousand of them; the body that the pod is sent is not touched."""
    name = "m" * 5000
    for fields in ({"messages": [user("hi")]}, {"prompt": "hi"}):
        body = json.dumps({"model": name, **fields}).encode()
        assert read_prompt(body).model == read_model(body) == name[:4096]


@pytest.mark.parametrize(
    "content",
    [
        pytest.param("lorem, [ipsum] {dolor} " * 40_000, id="a text of a mebibyte"),
        pytest.param([{"type": "text", "text": "a picture"}, {"url": "x" * 8 * MIB}], id="data"),
    ],
)
def test_a_long_body_of_few_values_is_read_whole(content):
    """However long it is."""
    assert chat(user(content)).size > 0


HALF = "\ud800"
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": NAN},
        {"x": [{"y": -INF}, INF]},
        {"user": HALF, "session_id": "s"},
        {"metadata": {HALF: HALF}},
        {"prompt_logprobs": None, "y": HALF * 2},
    ],
)
def test_what_is_json_for_python_is_read_as_without_it(fields):
    """Such bodies vLLM takes."""
    plain = {"session_id": "s"} if "user" in fields else {}
    for said in ([user("hi " * 200)], [user([{"type": "image_url"}, {"text": "é" * 300}])]):
        assert chat(*said, **fields) == chat(*said, **plain)
    body = json.dumps({"model": "m", "prompt": [1] * 100, **fields}).encode()
    assert (
        read_prompt(body).keys == read_prompt(b'{"model":"m","prompt":[%b1]}' % (b"1," * 99)).keys
    )
    assert read_model(body) == "m"


def test_numbers_and_halves_that_only_python_reads_may_stand_beside_what_is_said():
    """They change the prompt or not; names that tell others apart are text in any case."""
    tool = {"type": "function", "function": {"name": "f", "parameters": {"most": INF}}}
    assert chat(user("hi"), tools=[tool]).size > chat(user("hi")).size
    assert chat(user("hi", x=HALF)).size > chat(user("hi")).size
    assert read_prompt(b'{"messages": [], "tools": [1e400]}').size > 0
    named = chat(user("hi"), user=HALF, model=f"m{HALF}", cache_salt=HALF)
    assert (named.session, named.model) == ("?", "m?")


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [user(HALF)]},
        {"messages": [user([{"type": "text", "text": HALF}])], "temperature": NAN},
        {"prompt": HALF},
        {"input": HALF},
        {"messages": [user("hi")], "system": HALF},
    ],
)
def test_half_of_a_surrogate_pair_is_no_text_for_a_model(fields):
    """Nor would a pod take it."""
    with pytest.raises(BodyError, match="half of a surrogate pair"):
        read_prompt(json.dumps(fields).encode())


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b'{"a": NaN, "b": nan}', id="not Python's either"),
        pytest.param(b'{"a": NaN, "b": %b}' % (b"1" * 5000), id="a number without end"),
        pytest.param(b'{"a": NaN, "b": %b' % (b"[" * 100_000), id="nested too deeply"),
        pytest.param(b'{"a": NaN, "b": "%b"}' % (b"x" * 4 * MIB), id="too long"),
        pytest.param(b'{"a": [%bNaN]}' % (b"[]," * 200_000), id="too many values"),
        pytest.param(b"[NaN]", id="no object"),
        pytest.param(b'{"a": NaN, "b": "\xed\xa0\x80"}', id="no UTF-8"),
    ],
)
def test_what_python_does_not_read_or_not_at_once_is_refused(body):
    """Reading it must not hold up the others."""
    with pytest.raises(BodyError):
        read_prompt(body)
    assert read_model(body) == ""


@pytest.mark.parametrize("stream", [True, 1, "true", "True", "1"])
@pytest.mark.parametrize("content", ["hi", [{"type": "image_url"}]])
def test_a_stream_may_be_asked_for_in_other_words_and_no_model_is_none(stream, content):
    """As pods take them; what comes as null is not there."""
    said = chat(user(content), stream=stream, model=None)
    assert said == chat(user(content), stream=True, model="")
    assert (said.stream, said.model) == (True, "")
    assert not chat(user(content), stream="no").stream
    assert not chat(user(content), stream=None).stream
    assert read_model(b'{"model": null}') == read_model(b'{"model": ["m"]}') == ""


@pytest.mark.parametrize(
    ("fields", "tells"),
    [
        ({"prompt": "a", "echo": True, "logprobs": None}, True),
        ({"prompt": "a", "echo": True, "logprobs": 0}, False),
        ({"prompt": "a", "logprobs": 5}, True),
        ({"prompt": ["a"]}, True),
        ({"prompt": ["a", "b"]}, False),
        ({"prompt": [1, 2]}, True),
        ({"prompt": [[1, 2], [3]]}, False),
        ({"messages": [{"role": "user", "content": "a"}]}, True),
        ({"messages": [{"role": "user", "content": "a"}], "prompt_logprobs": 0}, False),
        (
            {"messages": [{"role": "user", "content": "a"}], "prompt_logprobs": 1, "tools": []},
            False,
        ),
        ({"token_ids": [1], "sampling_params": {"prompt_logprobs": 1}}, False),
        ({"token_ids": [1], "sampling_params": {"prompt_logprobs": None}}, True),
    ],
)
def test_what_counts_say_nothing_of_what_was_cached_is_known(fields, tells):
    """Several prompts are counted together; of one, all may have to be computed."""
    assert read_prompt(json.dumps({"model": "m", **fields}).encode()).tells is tells
