"""Bodies that are not plain JSON: unpacked within bounds, and forms of which one field is read."""

from __future__ import annotations

import gzip
import json
import zlib
from http import HTTPStatus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.http.heads import Head
from kvbench.router import bodies
from kvbench.router.bodies import CodingError, as_utf8, coding, form_field, uncoded, unpack

CODINGS = ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be"]
TEXT = b'{"model": "m"}' * 1000


def bare_deflate(data: bytes) -> bytes:
    """Return data as some clients send it: without the frame that the coding has."""
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


def zstd(data: bytes) -> bytes:
    """Return data as zstd."""
    packer = (
        bodies.zstd.ZstdCompressor()
    )  # as who sends a stream: without the length of what is in it
    return packer.compress(data) + packer.flush()


PACKERS = {
    b"gzip": gzip.compress, b"x-gzip": gzip.compress, b"deflate": zlib.compress,
    b"zstd": zstd,
}  # fmt: skip


@pytest.mark.parametrize("how", PACKERS)
@given(st.binary(min_size=1, max_size=2000))
def test_what_was_packed_is_unpacked(how, data):
    """Also where it comes in two members that follow each other."""
    pack = PACKERS[how]
    assert unpack(pack(data), how, 2000) == data
    assert unpack(pack(data) + pack(data), how, 4000) == data + data


def test_deflate_without_its_frame_is_understood():
    """As Internet Explorer's servers sent it, and some libraries do."""
    assert unpack(bare_deflate(TEXT), b"deflate", len(TEXT)) == TEXT


@pytest.mark.parametrize("how", PACKERS)
def test_what_becomes_too_large_is_413_and_what_is_damaged_400(how):
    """However small it is on the wire; and what ends too early is damaged."""
    packed = PACKERS[how](b"\0" * 10_000_000)
    for body, most, status in (
        (packed, 9_999_999, HTTPStatus.REQUEST_ENTITY_TOO_LARGE),
        (packed[:-9], 10_000_000, HTTPStatus.BAD_REQUEST),
        (b"hello", 10_000_000, HTTPStatus.BAD_REQUEST),
    ):
        with pytest.raises(CodingError) as caught:
            unpack(body, how, most)
        assert caught.value.status is status
    assert len(unpack(packed, how, 10_000_000)) == 10_000_000


@pytest.mark.parametrize("how", PACKERS)
@pytest.mark.parametrize("behind", [b"\n", b"\x1f\x8b\x08", b"something else"])
def test_what_stands_behind_the_end_is_not_called_an_end_too_early(how, behind):
    """It is told apart from a body that was cut."""
    packed = PACKERS[how](TEXT)
    with pytest.raises(CodingError, match=f"{len(behind)} bytes behind its end"):
        unpack(packed + behind, how, 2 * len(TEXT))
    with pytest.raises(CodingError, match="it ends too early"):
        unpack(packed[:-5], how, 2 * len(TEXT))


@pytest.mark.parametrize("how", [b"br", b"gzip, gzip", b"x" * 500])
def test_another_coding_is_415_and_says_which_there_are(how):
    """A client that knows it may send the body plain."""
    with pytest.raises(CodingError, match="expected gzip, deflate, zstd or none") as caught:
        unpack(b"hello", how, 100)
    assert caught.value.status is HTTPStatus.UNSUPPORTED_MEDIA_TYPE
    assert len(str(caught.value)) < 120


@pytest.mark.parametrize(
    ("value", "how"), [(None, b""), (b"Identity", b""), (b"", b""), (b" GZIP ", b"gzip")]
)
def test_a_head_says_how_its_body_is_packed(value, how):
    """And without that line it is the head of a plain one."""
    headers = [(b"host", b"x"), *([(b"content-encoding", value)] if value is not None else [])]
    head = Head("POST", b"/v1/responses?a=b", headers, keep_alive=False, http_1_0=True)
    assert coding(head) == how
    plain = uncoded(head)
    assert plain.headers == [(b"host", b"x")]
    assert (plain.method, plain.target, plain.query) == ("POST", b"/v1/responses?a=b", "a=b")
    assert (plain.keep_alive, plain.http_1_0) == (False, True)


def part(disposition: str, value: bytes, *headers: bytes) -> bytes:
    """Return a part of a form."""
    lines = [f"Content-Disposition: form-data; {disposition}".encode(), *headers, b"", value]
    return b"--XX\r\n" + b"\r\n".join(lines) + b"\r\n"


SOUND = part('name="file"; filename="model.mp3"', bytes(range(256)) * 9, b"Content-Type: audio/mp3")
SPOKEN = part('name="prompt"', b'--XX is what I say; name="model"\r\n\r\nother\r\n--X')
MODEL = part('name="model"', "größe/whisper".encode())
END = b"--XX--\r\n"
KIND = b"multipart/form-data; boundary=XX"


@pytest.mark.parametrize(
    ("kind", "body", "value"),
    [
        (KIND, SOUND + MODEL + END, "größe/whisper"),
        (KIND, SPOKEN + MODEL + SOUND + END, "größe/whisper"),
        (b'Multipart/Form-Data; charset=utf-8; boundary="XX"', MODEL + END, "größe/whisper"),
        (KIND, b"a preamble\r\n" + SOUND + MODEL + END, "größe/whisper"),
        (KIND, part("name=model", b"w") + END, "w"),
        (KIND, part('name="model"', b"") + END, ""),
        (KIND, part('name="model"', b"m" * 5000) + END, "m" * 1024),
        (KIND, SOUND + SPOKEN + END, ""),
        (KIND, b"--XX\r\n" + b"x" * 10_000 + b"\r\n" + MODEL + END, "größe/whisper"),
        (KIND, part('name="model"', b"w")[:-2], ""),
        (KIND, b"", ""),
        (b"multipart/form-data; boundary=YY", MODEL + END, ""),
        (b"multipart/form-data", MODEL + END, ""),
        (b"application/json", b'{"model": "m"}', ""),
    ],
)
def test_a_field_of_a_form_is_found_beside_files(kind, body, value):
    """Wherever it stands, and whatever others say; not where the form is none."""
    assert form_field(kind, body, b"model") == value


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"\xff\xfe{", b'"\x00\x00\xd8'])
def test_what_cannot_be_understood_stays_as_it_is(body):
    """Whoever reads it next says what is wrong with it."""
    assert as_utf8(body) == body


@given(st.dictionaries(st.text(max_size=9), st.integers()), st.sampled_from(CODINGS))
def test_json_is_the_same_in_every_coding(value, coding):
    """As vLLM reads it."""
    text = json.dumps(value, ensure_ascii=False)
    assert json.loads(as_utf8(text.encode(coding))) == value


@given(st.binary(max_size=300), st.lists(st.sampled_from([b"--XX", b"\r\n", b"\r\n\r\n", MODEL])))
def test_whatever_a_form_is_its_reading_ends(noise, pieces):
    """And no field is longer than what may be one."""
    assert len(form_field(KIND, noise.join(pieces), b"model")) <= 1024
