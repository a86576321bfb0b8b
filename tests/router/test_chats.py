"""Chats that begin as earlier ones did."""

from __future__ import annotations

import json

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.router.chats import KnownChats
from kvbench.router.keys import BodyError, Prompt, check_text, read_prompt

STRETCH = 64

tricky = st.sampled_from(
    [
        '{"',
        '},{"role":',
        ',{"',
        "}]}",
        "\\",
        '"',
        "é",
        "😀",
        "\ud800",
        "messages",
        "日本",
        "\n",
        "]",
    ]
)
contents = st.builds(
    lambda parts, times: "".join(parts) * times,
    st.lists(st.one_of(tricky, st.text(max_size=30)), max_size=6),
    st.sampled_from([1, 1, 7, 40]),
)
plain = {"role": st.sampled_from(["user", "assistant"]), "content": contents}
odd = {"name": st.just("x"), "parts": st.just([{"role": "user", "content": "y"}])}
call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": "é"}'}}
agents = {
    "content": contents | st.none() | st.lists(
        st.builds(lambda text: {"type": "text", "text": text}, contents)
        | st.just("x") | st.just({"type": "image_url", "image_url": {"b": 1, "a": 2}})
        | st.just({"type": "tool_result", "content": "y", "tool_use_id": "z", "is_error": None}),
        max_size=2,
    ),
    "tool_calls": st.lists(st.just(call), max_size=2) | st.none(), "name": st.just("n"),
    "tool_call_id": st.just("c"), "reasoning_content": contents, "refusal": st.none(),
    "cache_control": st.just({"type": "ephemeral"}),
}  # fmt: skip
agents_messages = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["assistant", "tool"])}, optional=agents)
    | st.fixed_dictionaries(plain),
    max_size=4,
)
plain_messages = st.lists(st.fixed_dictionaries(plain), max_size=5)
odd_messages = st.lists(st.fixed_dictionaries(plain, optional=odd), max_size=2)
fields = st.sampled_from(
    [
        '"model":"m"', '"model":"n"', '"session_id":"i"', '"prompt_cache_key":"k"',
        '"stream":true', '"user":"u"', '"cache_salt":"s"',
        '"x":[{"role":"user","content":"z"}]', '"x":[', '"messages":[]', '"tools":[{}]',
        '"m\\u0065ssages":[{"role":"user","content":"again"}]', '"stream":null', '"system":"s"',
        '"x":{"messages":[{"role":"user","content":"deep"}', '"temperature":1e400', '"y":"\\ud800"',
        '"tools":[{"b":1,"a":"' + 300 * "t" + '"}]', '"tools":[{"a":2}],"tools":null', '"tools":7',
        '"tools":"\\ud800"', '"system":[{"type":"text","text":"' + 99 * "é" + '"}]',
        '"system":[{"type":"text","text":"x-anthropic-billing-header: 1"}]', '"system":{"a":[]}',
        '"system":"' + 300 * "s" + '","tools":[{"c":[1.0,1e2]}]',
        '"tools":' + "[" * 3000 + "]" * 3000,
    ]
)  # fmt: skip
edits = st.lists(st.tuples(st.integers(0, 2000), st.binary(max_size=3)), max_size=2)


@st.composite
def histories(draw: st.DrawFn) -> list[bytes]:
    """Draw bodies of which many begin alike: turns of one chat, some of them spoiled."""
    kinds = [plain_messages] * 4 + [agents_messages] * 4 + [odd_messages]
    messages = draw(st.sampled_from(kinds))
    said = draw(messages) + draw(messages)
    before = draw(st.lists(fields, max_size=2))
    comma, colon = draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", ":")]))
    bodies = []
    for _ in range(draw(st.integers(2, 6))):
        if draw(st.booleans()):
            said = said + draw(messages)
        array = json.dumps(
            said, ensure_ascii=draw(st.booleans()), separators=(comma, colon)
        ).encode("utf-8", "surrogatepass")
        after = draw(st.lists(fields, max_size=2))
        parts = [one.encode() for one in before] + [b'"messages"' + colon.encode() + array]
        body = b"{" + comma.encode().join(parts + [one.encode() for one in after]) + b"}"
        for place, bytes_ in draw(edits) if draw(st.integers(0, 3)) == 0 else []:
            body = body[:place] + bytes_ + body[place + len(bytes_) :]
        bodies += [body] * draw(st.integers(1, 3))
    return bodies


def outcome(read, body: bytes) -> Prompt | str:
    """Return what is read of a body, or why it cannot be."""
    try:
        return read(body)
    except BodyError as error:
        return str(error)


def alone(body: bytes) -> Prompt:
    """Read a body as if there had been none before."""
    check_text(body)
    return read_prompt(body)


@settings(max_examples=5 * settings.default.max_examples)
@given(histories())
def test_a_body_reads_the_same_whatever_came_before(bodies):
    """Or fails with the same words; also where digests say nothing."""
    for digest in (xxhash.xxh3_64_intdigest, lambda _stretch, before: before + 1):
        chats = KnownChats(STRETCH, digest=digest)
        for body in bodies:
            assert outcome(chats.read, body) == outcome(alone, body)


def conversation(turns: int, *, system: str = "You are kind.", **more: object) -> bytes:
    """Return a chat of so many turns of 120 characters."""
    said = [{"role": "system", "content": system}]
    said += [{"role": "user", "content": f"{turn:3} " * 30} for turn in range(turns)]
    return json.dumps({"messages": said, "model": "m", **more}).encode()


def known_bytes(chats: KnownChats, body: bytes) -> int:
    """Return how much of a body need not be read again."""
    return chats.find(body)[0].at


def test_of_a_turn_only_what_did_not_come_twice_before_is_read():
    """But for the stretch in which that ends, and the message."""
    chats = KnownChats(STRETCH)
    for turns in range(1, 9):
        twice = len(conversation(turns - 2)) if turns > 2 else 0
        known = known_bytes(chats, conversation(turns))
        chats.read(conversation(turns))

        assert known <= twice
        assert known > twice - STRETCH - 200


def agents_turn(turns: int, tools: str = "a", *, behind: bool) -> bytes:
    """Return an agent's request: a call more with each turn, tools before or behind all of it."""
    said: list[dict[str, object]] = [{"role": "user", "content": "What is in them?"}]
    for turn in range(turns):
        function = {"name": "read", "arguments": json.dumps({"path": f"/{turn} " * 9})}
        call = {"id": f"c{turn}", "type": "function", "function": function}
        said += [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"c{turn}", "content": f"{turn:3} " * 30},
        ]
    named = {
        "tools": [{"type": "function", "function": {"name": tools * 400}}],
        "system": "be kind",
    }
    body = {"model": "m", "messages": said, **named} if behind else {**named, "messages": said}
    return json.dumps(body).encode()


@pytest.mark.parametrize("behind", [False, True])
def test_of_an_agents_turn_only_what_did_not_come_twice_before_is_read(behind):
    """Wherever its tools stand; where they change, all of it has other keys."""
    chats = KnownChats(STRETCH)
    for turns in range(1, 9):
        body = agents_turn(turns, behind=behind)
        known = known_bytes(chats, body)
        assert chats.read(body) == read_prompt(body)

        assert turns < 3 or known > body.index(b'"id": "c%d"' % (turns - 3))
    for _ in range(3):
        chats.read(body)
    assert known_bytes(chats, body) > body.index(b'"id": "c6"')
    other = agents_turn(8, "b", behind=behind)
    assert (known_bytes(chats, other) > 0) == behind
    assert chats.read(other) == read_prompt(other)
    assert set(chats.read(other).keys).isdisjoint(chats.read(agents_turn(8, behind=behind)).keys)


def test_what_comes_once_is_not_kept():
    """Chats that share nothing leave no start behind."""
    chats = KnownChats(STRETCH)
    for number in range(50):
        chats.read(conversation(4, system=f"{number} " * 30))

    assert len(chats) == 0


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b'{"x":[1],"messages":[{"role":"user","content":"%s"}]}', id="one message"),
        pytest.param(b'{"prompt":"%s"}', id="no chat"),
    ],
)
def test_what_has_no_second_message_is_read_whole(body):
    """There is nothing to go on from."""
    chats = KnownChats(STRETCH)
    body %= b"long " * 100
    for _ in range(3):
        assert chats.read(body) == read_prompt(body)

    assert known_bytes(chats, body) == 0


def test_a_second_messages_in_the_rest_counts_alone_as_it_does_in_json():
    """However its name is spelt."""
    chats = KnownChats(STRETCH)
    for turns in (4, 4, 4):
        chats.read(conversation(turns))
    body = conversation(5)[:-1] + b', "m\\u0065ssages": [{"role": "user", "content": "alone"}]}'

    assert known_bytes(chats, body) > 0
    assert chats.read(body) == read_prompt(body)
    assert chats.read(body).size == len("\x02user\x03alone")


def test_elements_of_another_array_are_not_taken_for_messages():
    """They stand where messages would go on if the array were theirs."""
    chats = KnownChats(STRETCH)
    head = (
        b'{"messages": [{"role": "user", "content": "a"}], "others": [{"role": "user", "content": "'
    )
    for tail in (b"b", b"b", b"b", b"c"):
        other = b"x" * 200 + b'"}, {"role": "user", "content": "' + tail * 200
        body = head + other + b'"}]}'
        assert chats.read(body).size == len("\x02user\x03a")


def test_a_model_named_after_the_messages_has_keys_of_its_own():
    """Though the bytes before are the same."""
    chats = KnownChats(STRETCH)
    for _ in range(3):
        chats.read(conversation(5))
    other = conversation(5).replace(b'"model": "m"', b'"model": "n"')

    assert known_bytes(chats, other) > 0
    assert chats.read(other) == read_prompt(other)
    assert set(chats.read(other).keys).isdisjoint(chats.read(conversation(5)).keys)


def test_starts_that_are_not_used_give_way_to_others():
    """There is room for so many, and what is in use stays."""
    chats = KnownChats(STRETCH, most=40)
    for number in range(60):
        for _ in range(2):
            chats.read(conversation(4, system=f"{number} " * 30))
            chats.read(conversation(4))

    assert len(chats) <= 80
    assert known_bytes(chats, conversation(4)) > 0
    assert known_bytes(chats, conversation(4, system="0 " * 30)) == 0


def test_where_a_body_is_no_text_is_said_of_the_whole_body():
    """Though only its end is looked at."""
    chats = KnownChats(STRETCH)
    for _ in range(3):
        chats.read(conversation(5))
    body = conversation(5).replace(b'"model"', b'"\xff"')

    with pytest.raises(BodyError, match=f"position {body.index(0xFF)}:"):
        chats.read(body)


@pytest.mark.parametrize("other", ["x" * 11 + "B" + "x" * 200, "x" * 200 + "B" + "x" * 11])
def test_bodies_of_one_digest_are_told_apart(other):
    """By their bytes, and by those of what stands before."""
    chats = KnownChats(STRETCH, digest=lambda _stretch, before: before + 1)
    one, two = conversation(5, system="x" * 212), conversation(5, system=other)
    short = conversation(0, system=other)
    for body in (one, one, short, two, one, two, two, one):
        assert chats.read(body) == read_prompt(body)
