"""Requests are bytes, made before they are due; `test_client` has them arrive."""

from kvbench.load.request import RequestForm
from kvbench.load.target import Target

FORM = RequestForm(Target.parse("http://pod:8000"), "completions", "sk-secret")


def test_a_request_carries_its_length_its_id_and_the_key():
    """The body follows the head as it is."""
    head, body = FORM.post("run-7", "s1", b'{"a":1}').split(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert lines[0] == "POST /v1/completions HTTP/1.1"
    assert {
        "Host: pod:8000",
        "Content-Length: 7",
        "x-request-id: run-7",
        "x-session-id: s1",
        "Authorization: Bearer sk-secret",
    } <= set(lines)
    assert body == b'{"a":1}'


def test_without_a_key_there_is_no_authorization():
    """An empty one would be refused by some servers."""
    form = RequestForm(Target.parse("http://pod"), "chat")
    assert b"uthorization" not in form.post("i", "s", b"") + form.models()


def test_the_key_is_not_shown_with_the_object():
    """Objects end up in logs."""
    assert "sk-secret" not in repr(FORM)


def test_the_list_of_models_is_asked_for_under_the_same_prefix():
    """And with the same key."""
    models = FORM.models().decode()
    assert models.startswith("GET /v1/models HTTP/1.1\r\nHost: pod:8000\r\n")
    assert "Bearer sk-secret" in models
