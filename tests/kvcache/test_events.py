"""The codec of KV events: bytes as real publishers send them, and shapes that none should."""

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.kvcache.events import (
    END_OF_REPLAY,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EventBatch,
    EventFormatError,
    Message,
    decode_batch,
    decode_frames,
    encode_batch,
    engine_hash,
    published_frames,
    replay_request,
    replayed_frames,
)

# The same batch as vLLM 0.23 and vLLM 0.24 encode it.
GOLDEN = EventBatch(
    ts=1.5,
    events=(
        BlockStored(
            block_hashes=(11, 12),
            parent_block_hash=None,
            token_ids=(1, 2, 3, 4),
            block_size=2,
            medium="GPU",
            group_idx=0,
            kv_cache_spec_kind="full_attention",
        ),
        BlockRemoved((11,), "GPU", 0),
        AllBlocksCleared(),
    ),
    data_parallel_rank=0,
)
GOLDEN_ARRAY = bytes.fromhex(
    "93cb3ff8000000000000939cab426c6f636b53746f726564920b0cc0940102030402c0a3475055c0c000ae"
    "66756c6c5f617474656e74696f6ec094ac426c6f636b52656d6f766564910ba34750550091b0416c6c426c"
    "6f636b73436c656172656400"
)
GOLDEN_MAP = bytes.fromhex(
    "93cb3ff8000000000000938aa474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657392"
    "0b0cb1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f6964739401020304aa626c6f636b5f"
    "73697a6502a76c6f72615f6964c0a66d656469756da3475055a96c6f72615f6e616d65c0a967726f75705f"
    "69647800b26b765f63616368655f737065635f6b696e64ae66756c6c5f617474656e74696f6e84a4747970"
    "65ac426c6f636b52656d6f766564ac626c6f636b5f686173686573910ba66d656469756da3475055a96772"
    "6f75705f6964780081a474797065b0416c6c426c6f636b73436c656172656400"
)
# Published by vLLM 0.32.0 on a CPU: one block of 32 after another.
RECORDED = bytes.fromhex(
    "93cb41dac31cdd4d1655918ba474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391cf"
    "7cb7446113eaf32db1706172656e745f626c6f636b5f68617368cfe001635f71127367a9746f6b656e5f6964"
    "73dc0020cd017ecd0172cd01eecd01e6ccf955cd0193cd0178cccc101b66cd01cccd0116ccdf7bcd012873cd"
    "01d6ccbb4fcd0180cd01d6cd019218cd0108cd0114cccbccd93ccd08bc3caa626c6f636b5f73697a6520a76c"
    "6f72615f6964c0a66d656469756da3475055a96c6f72615f6e616d65c0aa65787472615f6b65797391c0a967"
    "726f75705f69647800b26b765f63616368655f737065635f6b696e64ae66756c6c5f617474656e74696f6e00"
)

pack = msgspec.msgpack.encode


def test_the_array_form_is_read_and_written_byte_for_byte():
    """As vLLM up to 0.23 sends it: all twelve elements, though the last is empty."""
    assert decode_batch(GOLDEN_ARRAY) == GOLDEN
    assert encode_batch(GOLDEN, "array") == GOLDEN_ARRAY


def test_the_map_form_is_read_and_written_byte_for_byte():
    """As vLLM from 0.24 on sends it: empty optional keys are left out."""
    assert decode_batch(GOLDEN_MAP) == GOLDEN
    assert encode_batch(GOLDEN, "map") == GOLDEN_MAP


def test_a_recorded_message_of_a_real_engine_survives_the_round_trip():
    """Extra keys are a list with one empty entry per block."""
    batch = decode_batch(RECORDED)
    stored = batch.events[0]
    assert stored.block_hashes == (0x7CB7446113EAF32D,)
    assert stored.parent_block_hash == 0xE001635F71127367
    assert (len(stored.token_ids), stored.block_size, stored.extra_keys) == (32, 32, (None,))
    assert encode_batch(batch) == RECORDED


@pytest.mark.parametrize("length", range(5, 13))
def test_an_array_of_any_length_is_read_and_what_it_lacks_is_none(length):
    """Every release between 0.11 and 0.23 had its own; the first four fields are in all."""
    fields = [[7], None, [1, 2], 2, 3, "GPU", "adapter", [["adapter"]], 1, "mla", 9][: length - 1]
    stored = decode_batch(pack([0.0, [["BlockStored", *fields]], 0])).events[0]
    padded = fields + [None] * (11 - len(fields))
    assert stored.token_ids == (1, 2)
    assert (stored.lora_id, stored.medium, stored.lora_name) == tuple(padded[4:7])
    assert stored.extra_keys == ((("adapter",),) if length > 8 else None)
    assert (stored.group_idx, stored.kv_cache_spec_kind) == tuple(padded[8:10])


def test_a_batch_may_leave_out_its_rank():
    """Publishers other than vLLM send two elements."""
    assert decode_batch(pack([2, [["AllBlocksCleared"]]])) == EventBatch(2.0, (AllBlocksCleared(),))


def test_fields_and_events_that_we_do_not_know_are_skipped_and_counted():
    """A newer engine must not stop an older router."""
    newer = {"type": "BlockRemoved", "block_hashes": [1], "medium": "GPU", "ownership": "me"}
    batch = decode_batch(pack([0.0, [newer, {"type": "BlockMoved", "to": 3}, ["Other", 1]], 0]))
    assert batch.events == (BlockRemoved((1,), "GPU"),)
    assert batch.unknown == 2


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        pytest.param(b"\xc1", "not msgpack", id="no msgpack"),
        pytest.param(pack({"ts": 1}), "expected [ts, events, …]", id="a map for a batch"),
        pytest.param(pack(["now", []]), "ts: expected seconds", id="a text for a time"),
        pytest.param(pack([0.0, [3]]), "expected an event, got 3", id="a number for an event"),
        pytest.param(pack([0.0, [{"a": 1}]]), "expected an event", id="no type"),
        pytest.param(
            pack([0.0, [["BlockStored", [1], None, [1, 2, 3], 2]]]),
            "expected 1 blocks of 2 tokens, got 3 tokens",
            id="more tokens than blocks",
        ),
        pytest.param(
            pack([0.0, [["BlockStored", [1], None, [1, "x"], 2]]]), "token_ids", id="a text token"
        ),
        pytest.param(
            pack([0.0, [["BlockStored", [1], None, [-1], 1]]]), "token_ids", id="a negative token"
        ),
        pytest.param(
            pack([0.0, [["BlockStored", [1], None, 7, 1]]]), "token_ids", id="a lone token"
        ),
        pytest.param(
            pack([0.0, [["BlockStored", [1], None, [1], 1, 0, None, None, ["x"]]]]),
            "extra_keys: expected a list, got 'x'",
            id="bare extra keys",
        ),
        pytest.param(
            pack([0.0, [["BlockStored", [], None, [], 0]]]), "0 blocks of 0", id="no block size"
        ),
        pytest.param(
            pack([0.0, [["BlockStored", [1.5], None, [1], 1]]]), "block hash", id="a float hash"
        ),
        pytest.param(pack([0.0, [["BlockRemoved", 7]]]), "block_hashes", id="a lone hash"),
        pytest.param(
            pack([0.0, [["BlockStored", [1], None, [1], 1, None, 5]]]), "medium", id="a medium of 5"
        ),
        pytest.param(
            pack([0.0, [["BlockStored", [1], None, [1], 1, None, None, None, []]]]),
            "extra_keys: expected one entry for each of 1",
            id="extra keys for no block",
        ),
        pytest.param(pack([0.0, [], "x"]), "data_parallel_rank", id="a text for a rank"),
    ],
)
def test_what_contradicts_itself_is_refused_with_its_name(payload, message):
    """Half an event is worse than none."""
    with pytest.raises(EventFormatError) as caught:
        decode_batch(payload)
    assert message in str(caught.value)


def test_a_hash_of_bytes_and_the_same_as_a_number_are_one():
    """The integers of vLLM are the last eight bytes of its digests, big-endian."""
    digest = bytes.fromhex("202da172482d928bbc42ab25b0151e2b895f13f41002e27b2ceabcfae6d332ea")
    assert engine_hash(digest) == engine_hash(3236607068019569386) == 3236607068019569386


def test_frames_of_publishing_and_of_both_kinds_of_replay_are_one_message():
    """Three frames or four, with the topic or without."""
    assert decode_frames(published_frames("kv@a:1@m", 7, b"x")) == Message("kv@a:1@m", 7, b"x")
    assert decode_frames(replayed_frames("kv@a:1@m", 7, b"x")) == Message("kv@a:1@m", 7, b"x")
    assert decode_frames(replayed_frames("kv@a:1@m", 7, b"x", with_topic=False)) == Message(
        "", 7, b"x"
    )


def test_a_replay_is_asked_from_a_number_and_ends_with_minus_one():
    """The end is eight bytes of ff and nothing after them."""
    assert replay_request(258) == [b"", b"\0\0\0\0\0\0\x01\x02"]
    end = replayed_frames("", END_OF_REPLAY, b"")
    assert end == [b"", b"", b"\xff" * 8, b""]
    assert decode_frames(end) == Message("", END_OF_REPLAY, b"")


@pytest.mark.parametrize("frames", [[], [b"x"], [b"t", b"short", b"p"], [b""] * 3 + [b"x" * 8] * 2])
def test_other_frames_are_refused(frames):
    """A message of another protocol on the same port."""
    with pytest.raises(EventFormatError, match="expected \\[topic, seq, payload\\]"):
        decode_frames(frames)


hashes = st.integers(0, 2**64 - 1) | st.binary(min_size=1, max_size=32)
texts = st.none() | st.text(max_size=5)
extras = st.text(max_size=3) | st.tuples(st.text(max_size=3), st.integers(-9, 9))


@st.composite
def stored_events(draw):
    """Draw a BlockStored that is consistent in itself."""
    names, size = draw(st.lists(hashes, max_size=4)), draw(st.integers(1, 4))
    count = len(names) * size
    entries = st.none() | st.lists(extras, max_size=2).map(tuple)
    return BlockStored(
        block_hashes=tuple(names),
        parent_block_hash=draw(st.none() | hashes),
        token_ids=tuple(draw(st.lists(st.integers(0, 2**32 - 1), min_size=count, max_size=count))),
        block_size=size,
        lora_id=draw(st.none() | st.integers(0, 9)),
        medium=draw(texts),
        lora_name=draw(texts),
        extra_keys=draw(
            st.none() | st.lists(entries, min_size=len(names), max_size=len(names)).map(tuple)
        ),
        group_idx=draw(st.none() | st.integers(0, 3)),
        kv_cache_spec_kind=draw(texts),
        kv_cache_spec_sliding_window=draw(st.none() | st.integers(1, 4096)),
    )


removed_events = st.builds(
    BlockRemoved,
    st.lists(hashes, max_size=3).map(tuple),
    texts,
    st.none() | st.integers(0, 3),
)
batches = st.builds(
    EventBatch,
    st.floats(0, 1e12),
    st.lists(stored_events() | removed_events | st.just(AllBlocksCleared()), max_size=4).map(tuple),
    st.none() | st.integers(0, 7),
)


@given(batches, st.sampled_from(["array", "map"]))
def test_every_batch_survives_the_round_trip_in_both_forms(batch, form):
    """Law 6 of the codec."""
    assert decode_batch(encode_batch(batch, form)) == batch


@given(st.sampled_from([GOLDEN_ARRAY, GOLDEN_MAP]), st.data())
def test_no_bytes_crash_the_decoder(payload, data):
    """Anything may arrive on a socket; it is a batch or an EventFormatError."""
    broken = bytearray(payload[: data.draw(st.integers(0, len(payload)))])
    for _ in range(data.draw(st.integers(0, 3)) if broken else 0):
        broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(EventFormatError):
        assert isinstance(decode_batch(bytes(broken)), EventBatch)


@pytest.mark.parametrize(
    ("fields", "counts"),
    [
        ({}, True),
        ({"group_idx": 0, "kv_cache_spec_kind": "unknown"}, True),
        ({"group_idx": 3, "kv_cache_spec_kind": "full_attention"}, True),
        ({"group_idx": 1, "kv_cache_spec_kind": "mla_attention"}, True),
        ({"group_idx": 1, "kv_cache_spec_kind": "sink_full_attention"}, True),
        ({"group_idx": 1}, False),
        ({"group_idx": 1, "kv_cache_spec_kind": "unknown"}, False),
        ({"group_idx": 0, "kv_cache_spec_kind": "sliding_window_mla"}, False),
        ({"group_idx": 0, "kv_cache_spec_kind": "mamba"}, False),
        ({"group_idx": 0, "kv_cache_spec_kind": "full_attention", "medium": "CPU"}, False),
    ],
)
def test_blocks_of_attention_over_the_whole_context_count_and_others_may_leave_some_out(
    fields, counts
):
    """A sliding window names the blocks that it has kept, beside the tokens of all."""
    event = BlockStored((7,), None, (1, 2, 3, 4), 2, **{"medium": "GPU", **fields})
    assert event.counts is counts
    whole = EventBatch(1.0, (event,), 0)
    if counts:
        with pytest.raises(EventFormatError, match="expected 1 blocks of 2 tokens, got 4"):
            decode_batch(encode_batch(whole))
    else:
        assert decode_batch(encode_batch(whole)) == whole


@pytest.mark.parametrize("form", ["map", "array"])
def test_an_offloaded_block_is_announced_by_its_name_alone(form):
    """Without tokens, which a block in GPU memory must have."""
    lowered = EventBatch(1.0, (BlockStored((7,), None, (), 16, medium="CPU"),), 0)
    assert decode_batch(encode_batch(lowered, form)) == lowered
    bare = EventBatch(1.0, (BlockStored((7,), None, (), 16, medium="GPU"),), 0)
    with pytest.raises(EventFormatError, match="expected 1 blocks of 16 tokens, got 0"):
        decode_batch(encode_batch(bare, form))
