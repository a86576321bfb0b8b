"""A base URL is taken apart once, and refused where requests cannot be sent to it."""

import pytest

from kvbench.errors import InputError
from kvbench.load.target import Target

GOOD = [
    pytest.param("http://127.0.0.1:8000", "127.0.0.1:8000", "/v1/completions", id="plain"),
    pytest.param("http://pod", "pod:80", "/v1/completions", id="the port of http"),
    pytest.param("https://pod/", "pod:443", "/v1/completions", id="the port of https"),
    pytest.param("http://[::1]:8000", "[::1]:8000", "/v1/completions", id="IPv6"),
    pytest.param("http://gw/llm/", "gw:80", "/llm/v1/completions", id="a path before /v1"),
    pytest.param("http://gw/llm/v1", "gw:80", "/llm/v1/completions", id="/v1 is not doubled"),
    pytest.param("http://gw/a b", "gw:80", "/a%20b/v1/completions", id="a blank in the path"),
]


@pytest.mark.parametrize(("url", "authority", "endpoint"), GOOD)
def test_a_base_url_gives_host_and_endpoint(url, authority, endpoint):
    """With and without port, path and /v1."""
    target = Target.parse(url)
    assert (target.authority, target.endpoint("completions")) == (authority, endpoint)


def test_chats_go_to_their_own_endpoint():
    """The plan decides which."""
    assert Target.parse("http://pod").endpoint("chat") == "/v1/chat/completions"


BAD = [
    pytest.param("pod:8000", "expected an http(s) URL, got 'pod:8000'", id="no scheme"),
    pytest.param("ftp://pod", "expected an http(s) URL, got 'ftp://pod'", id="another scheme"),
    pytest.param("http://:80", "expected an http(s) URL, got 'http://:80'", id="no host"),
    pytest.param("http://pod:eighty", "expected a URL, got 'http://pod:eighty'", id="no port"),
    pytest.param("http://p\u00f6d", "expected an ASCII host name, got 'p\u00f6d'", id="umlaut"),
]


@pytest.mark.parametrize(("url", "message"), BAD)
def test_what_is_no_base_url_is_refused(url, message):
    """The flag is named, and what was given."""
    with pytest.raises(InputError) as caught:
        Target.parse(url)
    assert caught.value.message == f"--host: {message}"


def test_a_password_in_the_url_is_refused_without_being_repeated():
    """It would end up in logs."""
    with pytest.raises(InputError) as caught:
        Target.parse("http://me:hunter2@pod")
    assert "hunter2" not in caught.value.message + str(caught.value.hint)
