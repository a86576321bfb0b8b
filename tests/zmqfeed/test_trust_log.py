"""The log of how far pods may be believed."""

from __future__ import annotations

import logging

from kvbench.kvcache.events import END_OF_REPLAY, BlockStored, EventBatch, encode_batch
from kvbench.kvcache.events import published_frames as published
from kvbench.kvcache.events import replayed_frames as replayed
from kvbench.kvcache.ledger import Ledger
from kvbench.zmqfeed.trust_log import TrustLog


def batch(number: int) -> bytes:
    """Return a batch of one block."""
    return encode_batch(EventBatch(1.0, (BlockStored((number,), None, (number, number), 2),)))


def test_a_change_is_said_once_and_only_lost_events_are_trouble(caplog):
    """A pod that has only been named, and one that is gone, are not worth a line."""
    caplog.set_level(logging.INFO, "kvbench")
    ledger = Ledger(lambda: 1.0)
    log = TrustLog(ledger)
    (stream,) = ledger.follow("a")
    log.tell()
    ledger.ask(stream)
    ledger.replayed(stream, replayed("", END_OF_REPLAY, b""))
    log.tell()
    log.tell()
    ledger.published(stream, published("", 2, batch(2)))
    ledger.replay_ended(stream)
    log.tell()
    ledger.drop("a")
    log.tell()

    lost = (
        "batches 0 to 1 are lost until its cache is reset (POST /reset_prefix_cache) or it is "
        "restarted: no replay brought them (buffer_steps in its --kv-events-config says how many "
        "it keeps)"
    )
    said = [(record.levelno, record.getMessage()) for record in caplog.records]
    assert said == [
        (logging.INFO, "a: its KV events are exact: nothing was published yet"),
        (logging.WARNING, f"a: its KV events are degraded: {lost}"),
    ]
