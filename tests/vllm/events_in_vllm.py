"""Hears KV events as a consumer that has vLLM's own classes: SUBSCRIBE-URL REPLAY-URL COUNT.

Runs inside vLLM's Python. It asks for a replay of everything, then listens until it has heard
`COUNT` messages live; each payload must be what vLLM's encoder makes of what its decoder read.
Prints the events of the replay as JSON.
"""

import json
import sys

import msgspec
import zmq
from vllm.distributed.kv_events import KVEventBatch, ZmqEventPublisher

decoder, encoder = msgspec.msgpack.Decoder(type=KVEventBatch), msgspec.msgpack.Encoder()


def read(number, payload, expected):
    """Return the batch in a payload."""
    assert int.from_bytes(number, "big") == expected
    batch = decoder.decode(payload)
    assert encoder.encode(batch) == payload
    return batch


subscribe, replay, count = sys.argv[1:]
context = zmq.Context()
live, old = context.socket(zmq.SUB), context.socket(zmq.DEALER)
live.connect(subscribe)
live.subscribe(b"kv@")
old.connect(replay)
old.send_multipart((b"", (0).to_bytes(8, "big")))
batches = []
while True:
    empty, topic, number, payload = old.recv_multipart()
    assert empty == b""
    if number == ZmqEventPublisher.END_SEQ:
        assert (topic, payload) == (b"", b"")
        break
    assert topic.startswith(b"kv@")
    batches.append(read(number, payload, len(batches)))
sys.stdout.write(json.dumps([msgspec.to_builtins(batch) for batch in batches]) + "\n")
sys.stdout.flush()
first = None
for _ in range(int(count)):
    topic, number, payload = live.recv_multipart()
    first = int.from_bytes(number, "big") if first is None else first + 1
    read(number, payload, first)
