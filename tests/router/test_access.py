"""Who may ask, and how much."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.errors import InputError
from kvbench.router.access import Access, Grant, Holder, read_keys

DIGEST = hashlib.sha256(b"another-key").hexdigest()
GOOD = f"""keys:
  - name: team-a
    key: sk-6dp2hTV0cQ
    in_flight: 8
    per_minute: 600
  - {{name: team-b, sha256: "{DIGEST}"}}
"""


def grant(name: str, key: str, **limits: float) -> Grant:
    """Return a grant for a key."""
    return Grant(name, hashlib.sha256(key.encode()).digest(), **limits)


def test_a_file_of_keys_is_read(tmp_path):
    """Keys, or their digests."""
    path = tmp_path / "keys.yaml"
    path.write_text(GOOD)

    assert read_keys(path) == [
        grant("team-a", "sk-6dp2hTV0cQ", in_flight=8, per_minute=600),
        grant("team-b", "another-key"),
    ]


SECRET = "sk-very-secret"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "got an empty file"),
        ("a: 1", "expected keys: and a list"),
        ("keys: 7", "keys: expected a list of 1 to"),
        ("keys: []", "keys: expected a list of 1 to"),
        ("keys:\n  - x", ":2: keys.0: expected name"),
        (f"keys:\n  - key: {SECRET}", "keys.0.name: expected 1 to 64 letters"),
        (f"keys:\n  - name: 'a b'\n    key: {SECRET}", ":2: keys.0.name"),
        ("keys:\n  - name: a", "keys.0.key: expected either key or sha256"),
        (f"keys:\n  - name: a\n    key: {SECRET}\n    sha256: x", "either key or sha256"),
        ("keys:\n  - name: a\n    key: 1234567890", ":3: keys.0.key: expected a text of 8"),
        ("keys:\n  - name: a\n    key: short", "keys.0.key: expected a text of 8"),
        ("keys:\n  - name: a\n    sha256: abc", "keys.0.sha256: expected 64 hexadecimal"),
        (f"keys:\n  - name: a\n    key: {SECRET}\n    limit: 3", ":4: keys.0.limit: expected one"),
        (f"keys:\n  - name: a\n    key: {SECRET}\n    in_flight: 0", "keys.0.in_flight"),
        (f"keys:\n  - name: a\n    key: {SECRET}\n    in_flight: true", "keys.0.in_flight"),
        (f"keys:\n  - name: a\n    key: {SECRET}\n    per_minute: .nan", "keys.0.per_minute"),
        (f"keys:\n  - name: a\n    key: {SECRET}\n    per_minute: -1", "keys.0.per_minute"),
        (f"keys:\n  - name: a\n    key: {SECRET}\n  - name: a\n    key: other{SECRET}",
         ":4: keys.1.name: given twice"),
        (f"keys:\n  - name: a\n    key: {SECRET}\n  - name: b\n    key: {SECRET}",
         ":5: keys.1.key: given twice"),
    ],
)  # fmt: skip
def test_a_wrong_file_of_keys_is_refused_and_no_key_is_quoted(tmp_path, text, words):
    """File, line and what was expected."""
    path = tmp_path / "keys.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_keys(path)

    assert words in str(caught.value)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("headers", "who"),
    [
        ({b"authorization": b"Bearer key-of-ann"}, "ann"),
        ({b"authorization": b"bearer  key-of-bob "}, "bob"),
        ({b"x-api-key": b"key-of-bob"}, "bob"),
        ({b"authorization": b"Basic key-of-ann", b"x-api-key": b"key-of-bob"}, "bob"),
        ({b"authorization": b"Bearer nobody's", b"x-api-key": b"key-of-bob"}, None),
        ({b"authorization": b"key-of-ann"}, None),
        ({b"authorization": b"Bearer key-of-an"}, None),
        ({b"authorization": b"Bearer "}, None),
        ({b"authorization": b"Bearer \xff\x00"}, None),
        ({}, None),
    ],
)
def test_a_key_is_found_in_either_header(headers, who):
    """OpenAI's clients send one, Anthropic's the other."""
    holder = Access([grant("ann", "key-of-ann"), grant("bob", "key-of-bob")]).of(headers)

    assert (None if holder is None else holder.name) == who


def test_a_grant_does_not_show_its_digest():
    """A short key could be guessed from it."""
    assert repr(grant("ann", "key-of-ann")) == (
        "Grant(name='ann', in_flight=None, per_minute=None)"
    )


def test_requests_at_once_are_limited():
    """One that leaves makes room."""
    holder = Holder(grant("a", "x" * 8, in_flight=2))
    assert holder.enter(0.0) is None
    assert holder.enter(0.0) is None
    assert holder.enter(0.0) == ("in_flight", 1)

    holder.leave()
    assert holder.enter(0.0) is None
    assert holder.under_way == 2


def test_requests_a_minute_are_limited_and_the_wait_is_told():
    """A tenth of a minute's may come at once; then one by one."""
    holder = Holder(grant("a", "x" * 8, per_minute=30))
    assert [holder.enter(0.0) for _ in range(4)] == [None, None, None, ("per_minute", 2)]

    assert holder.enter(1.9) == ("per_minute", 1)
    assert holder.enter(2.0) is None
    assert holder.enter(2.1) == ("per_minute", 2)
    slow = Holder(grant("a", "x" * 8, per_minute=0.5))
    assert [slow.enter(0.0), slow.enter(0.0)] == [None, ("per_minute", 120)]


@given(
    st.floats(0.5, 6000),
    st.lists(st.tuples(st.floats(0, 30), st.booleans()), max_size=60),
)
def test_no_minute_sees_more_than_the_limit_and_a_burst(rate, history):
    """Whenever they come; and whoever waits as told is let in."""
    holder = Holder(grant("a", "x" * 8, per_minute=rate))
    now, entered = 0.0, []
    for pause, patient in history:
        now += pause
        refused = holder.enter(now)
        if refused is not None and patient:
            now += refused[1]
            refused = holder.enter(now)
            assert refused is None
        if refused is None:
            entered.append(now)
    for start in entered:
        minute = [moment for moment in entered if start <= moment < start + 60]
        assert len(minute) <= rate + max(rate / 10, 1) + 1e-6


def test_keys_read_again_keep_what_is_under_way():
    """By name: a key may be replaced, a limit changed."""
    access = Access([grant("ann", "key-of-ann", in_flight=1), grant("bob", "key-of-bob")])
    ann = access.of({b"x-api-key": b"key-of-ann"})
    assert ann is not None
    assert ann.enter(0.0) is None
    access.grant([grant("ann", "new-key-of-ann", in_flight=2)])

    assert access.of({b"x-api-key": b"key-of-ann"}) is None
    assert access.of({b"x-api-key": b"key-of-bob"}) is None
    assert access.of({b"x-api-key": b"new-key-of-ann"}) is ann
    assert ann.enter(0.0) is None
    assert ann.enter(0.0) == ("in_flight", 1)
