"""What stands behind a pod's URL: where its KV events come from."""

from __future__ import annotations

import pytest

from kvbench.errors import InputError
from kvbench.zmqfeed.sources import EventSource, parse_pod

URL = "http://10.0.0.7:8000"


@pytest.mark.parametrize(
    ("rest", "source"),
    [
        ("", None),
        (",events=tcp://10.0.0.7:5557", EventSource("tcp://10.0.0.7:5557")),
        (
            ",events=tcp://h:1,replay=tcp://h:2,topic=kv@h,ranks=2",
            EventSource("tcp://h:1", "tcp://h:2", "kv@h", 2),
        ),
        (
            ",replay=ipc:///tmp/b,events=ipc:///tmp/a",
            EventSource("ipc:///tmp/a", "ipc:///tmp/b"),
        ),
    ],
)
def test_endpoints_follow_the_url(rest, source):
    """In any order; a URL alone has no events."""
    assert parse_pod(URL + rest) == (URL, source)


def test_ranks_publish_on_ports_that_follow_each_other():
    """Replays too, as vLLM has it."""
    source = EventSource("tcp://h:5557", "tcp://h:6557", "t", 3)
    assert source.of_rank(0) == EventSource("tcp://h:5557", "tcp://h:6557", "t")
    assert source.of_rank(2) == EventSource("tcp://h:5559", "tcp://h:6559", "t")


def test_an_endpoint_with_a_star_is_bound_by_the_router():
    """Pods dial out."""
    assert EventSource("tcp://*:5557").bound
    assert not EventSource("tcp://10.0.0.7:5557").bound


@pytest.mark.parametrize(
    ("rest", "words"),
    [
        (",event=tcp://h:1", "expected one of events, replay, topic, ranks with a value"),
        (",events=", "with a value, got 'events='"),
        (",events=tcp://h:1,events=tcp://h:2", "events is given twice"),
        (",replay=tcp://h:1", "expected events=ENDPOINT beside replay"),
        (",events=h:1", "expected tcp://HOST:PORT or ipc://PATH, got 'h:1'"),
        (",events=tcp://h", "expected a port"),
        (",events=tcp://h:x", "expected a port"),
        (",events=tcp://h:1,replay=tcp://*:2", "replay: expected where the pod answers"),
        (",events=tcp://h:1,ranks=0", "ranks: expected a number from 1"),
        (",events=ipc:///tmp/a,ranks=2", "ranks: expected a tcp:// endpoint"),
    ],
)
def test_what_makes_no_sense_is_named_with_an_example(rest, words):
    """The flag, the value, the hint."""
    with pytest.raises(InputError, match="--pod " + URL) as raised:
        parse_pod(URL + rest)
    assert words in raised.value.message
    assert "events=tcp://" in raised.value.hint


@pytest.mark.parametrize(
    "flag",
    [
        "http://a:1,events=tcp://b:2",
        "http://a:1,events=tcp://b:2,replay=tcp://b:3,topic=kv@a:1@m,ranks=4",
        "http://a:1,events=ipc:///tmp/x",
    ],
)
def test_a_source_can_be_written_as_it_is_read(flag):
    """For whoever is told of pods by a router."""
    url, source = parse_pod(flag)

    assert source.beside(url) == flag


@pytest.mark.parametrize(
    ("source", "by_name"),
    [
        (EventSource("tcp://10.0.0.7:5557", "tcp://10.0.0.7:5558"), False),
        (EventSource("tcp://[fd00::7]:5557"), False),
        (EventSource("tcp://*:5557", "tcp://10.0.0.7:5558"), False),
        (EventSource("ipc:///tmp/kv"), False),
        (EventSource("tcp://vllm-0.svc:5557"), True),
        (EventSource("tcp://*:5557", "tcp://vllm-0.svc:5558"), True),
    ],
)
def test_a_source_knows_whether_a_name_server_must_be_asked(source, by_name):
    """Of either of its endpoints."""
    assert source.by_name == by_name
