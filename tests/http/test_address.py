"""URLs of pods."""

from __future__ import annotations

import pytest

from kvbench.errors import InputError
from kvbench.http.address import parse_address


@pytest.mark.parametrize(
    ("url", "name", "port", "tls", "base"),
    [
        ("http://127.0.0.1:8000", "127.0.0.1:8000", 8000, False, ""),
        ("http://pod-3/", "pod-3:80", 80, False, ""),
        ("https://pod/base/path/", "pod:443", 443, True, "/base/path"),
        ("http://[::1]:9", "[::1]:9", 9, False, ""),
    ],
)
def test_a_url_is_taken_apart(url, name, port, tls, base):
    """Name, port, encryption and the path before every target."""
    address = parse_address(url)

    assert (address.name, address.port, address.tls, address.base) == (name, port, tls, base)
    assert address.url == url.rstrip("/")


@pytest.mark.parametrize("path", ["/v1", "/v1/", "/base/v1"])
def test_the_base_url_of_a_client_is_told_from_that_of_a_pod(path):
    """OpenAI's clients are given it with `/v1`; the paths of requests have that already."""
    with pytest.raises(InputError, match="expected a URL without /v1") as refusal:
        parse_address(f"http://pod:8000{path}")

    assert refusal.value.hint == "http://pod:8000" + path.rstrip("/").removesuffix("/v1")


def test_the_name_of_a_host_is_as_long_as_dns_allows():
    """And no longer: it stands in every table, metric and log line."""
    longest = ".".join(["a" * 63] * 3 + ["b" * 61])
    assert parse_address(f"http://{longest}:1").host == longest

    with pytest.raises(InputError, match="a host name of at most 253 characters, got 254"):
        parse_address(f"http://{longest}b:1")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:8000",
        "ftp://pod:1",
        "http://",
        "http://pod:port",
        "http://pod:99999",
        "http://pod:0",
        "http://pod:1?x=1",
        "http://user@pod:1",
        "http://pod:1/a b",
        "http://pod:1/\r\nx: y",
        "http://p\u00f6d:1",
    ],
)
def test_what_is_no_url_of_a_pod_is_refused_with_the_form(url):
    """The sentence shows what was given and what is meant."""
    with pytest.raises(InputError, match="--pod: expected a URL such as") as refusal:
        parse_address(url)

    assert refusal.value.hint is not None
