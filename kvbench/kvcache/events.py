"""KV events on the wire: what vLLM publishes about its cache, as typed values.

A batch is always a msgpack array `[ts, events, data_parallel_rank]`, of which the last may be
missing. An event comes in one of two forms, and which is decided **by shape, event by event**:

- vLLM up to 0.23: a tagged array, `["BlockStored", hashes, parent, token_ids, block_size, …]`,
  whose tail grew from version to version;
- vLLM from 0.24 on: a map with a `"type"`, in which optional keys may be absent.

Block hashes are integers of 64 bits or raw bytes. What is missing at the end is taken as None;
what is unknown, fields as well as whole events, is skipped, and unknown events are counted. What
contradicts itself is refused: an event that is half understood is worse than none.

Frames: a publisher sends `[topic, seq, payload]`; a replay is asked for with `[b"", start]` and
answers with `[b"", seq, payload]` (up to 0.25) or `[b"", topic, seq, payload]` for each batch and
then a sequence number of -1 with an empty payload. The sequence number is 8 bytes, big-endian.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

import msgspec

from kvbench.errors import TargetError
from kvbench.kvcache.blocks import pack_tokens

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

EngineHash: TypeAlias = int | bytes
if TYPE_CHECKING:
    ExtraValue: TypeAlias = str | int | bytes | tuple[str | int | bytes, ...]
else:  # msgspec cannot tell bytes from a text in a union: bytes are decoded piece by piece
    ExtraValue = str | int | tuple[str | int, ...]
Form: TypeAlias = Literal["array", "map"]

END_OF_REPLAY = -1

_GPU = {None, *map("".join, product("Gg", "Pp", "Uu"))}
_WHOLE_CONTEXT = {"full_attention", "mla_attention", "sink_full_attention"}
_UNSAID = {None, "unknown"}


class EventFormatError(TargetError):
    """A publisher sent something that is no KV event."""


class BlockStored(msgspec.Struct, frozen=True, gc=False, tag_field="type", tag=True):
    """Consecutive full blocks can be hit from now on.

    Attributes:
        block_hashes: The engine's names for them.
        parent_block_hash: Its name for the block before the first; None at a prompt's start.
        token_ids: Of all of them, `block_size` each. Whether each fits into 32 bits shows itself
            when they are packed.
        block_size: Tokens per block.
        lora_id: Adapter's number; deprecated.
        medium: "GPU", "CPU", "STORAGE", or None.
        lora_name: Adapter's name.
        extra_keys: Per block: LoRA name, (multimodal identifier, offset), cache salt; or None.
        group_idx: KV cache group; None or 0 where there is but one.
        kv_cache_spec_kind: Kind of attention of the group: "full_attention".
        kv_cache_spec_sliding_window: Its window, if it has one.
    """

    block_hashes: tuple[EngineHash, ...]
    parent_block_hash: EngineHash | None
    token_ids: tuple[int, ...]
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: tuple[tuple[ExtraValue, ...] | None, ...] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None

    @property
    def counts(self) -> bool:
        """Whether these blocks are in GPU memory and stand for the whole context before them.

        Where the kind of attention is not said, those of the first group are taken to.
        """
        if not in_gpu(self.medium):
            return False
        kind = self.kv_cache_spec_kind
        return kind in _WHOLE_CONTEXT or (kind in _UNSAID and not self.group_idx)


class BlockRemoved(msgspec.Struct, frozen=True, gc=False, tag_field="type", tag=True):
    """Blocks were evicted from one medium."""

    block_hashes: tuple[EngineHash, ...]
    medium: str | None = None
    group_idx: int | None = None

    @property
    def counts(self) -> bool:
        """Whether they left GPU memory."""
        return in_gpu(self.medium)


class AllBlocksCleared(msgspec.Struct, frozen=True, gc=False, tag_field="type", tag=True):
    """The whole cache was reset."""


Event: TypeAlias = BlockStored | BlockRemoved | AllBlocksCleared

_typed = msgspec.msgpack.Decoder(tuple[float, tuple[Event, ...], int | None])
"""Today's vLLM, in one go; whatever it does not take is looked at piece by piece."""


class EventBatch(msgspec.Struct, frozen=True, gc=False):
    """What one scheduler step published.

    Attributes:
        ts: When, in the publisher's calendar seconds.
        events: In order.
        data_parallel_rank: Which rank; None if the publisher did not say.
        unknown: How many events of unknown kinds were skipped.
    """

    ts: float
    events: tuple[Event, ...]
    data_parallel_rank: int | None = None
    unknown: int = 0


class Message(msgspec.Struct, frozen=True, gc=False):
    """One multipart message, taken apart but not decoded.

    Attributes:
        topic: As published; empty where the publisher or its replay sends none.
        seq: Number of the batch, from 0; `END_OF_REPLAY` closes a replay.
        payload: A batch, for `decode_batch`.
    """

    topic: str
    seq: int
    payload: bytes


_STORED: tuple[str, ...] = (
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
    "kv_cache_spec_sliding_window",
)
_REMOVED: tuple[str, ...] = ("block_hashes", "medium", "group_idx")
# Map form: keys from here on are left out where they are None.
_STORED_OPTIONAL = _STORED.index("extra_keys")
_REMOVED_OPTIONAL = _REMOVED.index("group_idx")


def engine_hash(value: EngineHash) -> int:
    """Return an engine's hash as 64 bits, whichever way it was sent.

    Bytes are cut to their last eight, big-endian: what vLLM sends as an integer is just that.
    """
    return value if isinstance(value, int) else int.from_bytes(value[-8:], "big")


def decode_batch(payload: bytes) -> EventBatch:
    """Return the batch in `payload`, in either form.

    Raises:
        EventFormatError: It is no msgpack, no batch, or an event in it contradicts itself.
    """
    try:
        ts, found, rank = _typed.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return _decode_any(payload)
    for event in found:
        if type(event) is BlockStored:  # a tenth of what isinstance takes to say no
            _check(event)
    return EventBatch(ts, found, rank)


def _decode_any(payload: bytes) -> EventBatch:
    """Return a batch of any form: arrays, unknown events, and what is wrong, in words."""
    try:
        raw = msgspec.msgpack.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise EventFormatError(f"KV events: not msgpack: {error}") from error
    if not isinstance(raw, list) or len(raw) < 2 or not isinstance(raw[1], list):
        raise EventFormatError(f"KV events: expected [ts, events, …], got {str(raw)[:80]}")
    if not isinstance(raw[0], int | float):
        raise EventFormatError(f"KV events: ts: expected seconds, got {raw[0]!r:.80}")
    events = [_event(item) for item in raw[1]]
    rank = raw[2] if len(raw) > 2 else None
    return EventBatch(
        ts=float(raw[0]),
        events=tuple(event for event in events if event is not None),
        data_parallel_rank=None if rank is None else _whole("data_parallel_rank", rank),
        unknown=events.count(None),
    )


def in_gpu(medium: str | None) -> bool:
    """Return whether an event is about GPU memory; those that do not say are."""
    return medium in _GPU


def encode_batch(batch: EventBatch, form: Form = "map") -> bytes:
    """Return the bytes that vLLM sends for `batch`: "map" from 0.24 on, "array" before."""
    encode = _as_map if form == "map" else _as_array
    events = [encode(event) for event in batch.events]
    return msgspec.msgpack.encode([batch.ts, events, batch.data_parallel_rank])


def decode_frames(frames: Sequence[bytes]) -> Message:
    """Take a published or replayed message apart.

    Args:
        frames: Two to four: whatever stands before the topic, the topic, seq, payload. A DEALER
            socket's leading empty frame may be left in.

    Raises:
        EventFormatError: Too few frames or too many, or a sequence number that is none.
    """
    if not 2 <= len(frames) <= 4 or len(frames[-2]) != 8:
        shape = [len(frame) for frame in frames]
        raise EventFormatError(f"KV events: expected [topic, seq, payload], got frames of {shape}")
    topic = frames[-3] if len(frames) > 2 else b""
    seq = int.from_bytes(frames[-2], "big", signed=True)
    return Message(topic.decode(errors="replace"), seq, frames[-1])


def published_frames(topic: str, seq: int, payload: bytes) -> list[bytes]:
    """Return the frames in which batch number `seq` is published."""
    return [topic.encode(), seq.to_bytes(8, "big"), payload]


def replay_request(start: int) -> list[bytes]:
    """Return what a DEALER sends to ask for batch `start` and all later ones."""
    return [b"", start.to_bytes(8, "big")]


def replayed_frames(
    topic: str, seq: int, payload: bytes, *, with_topic: bool = True
) -> list[bytes]:
    """Return the frames of one answer to a replay request.

    Args:
        topic: As published.
        seq: Number of the batch, or `END_OF_REPLAY` with an empty topic and payload.
        payload: The batch.
        with_topic: As from vLLM 0.26 on; before, the topic was left out.
    """
    number = seq.to_bytes(8, "big", signed=seq < 0)
    return [b"", topic.encode(), number, payload] if with_topic else [b"", number, payload]


def _event(raw: object) -> Event | None:
    """Return one event, None if its kind is unknown."""
    if isinstance(raw, list) and raw and isinstance(raw[0], str):
        kind, values = raw[0], raw[1:]
        stored, removed = (dict(zip(names, values, strict=False)) for names in (_STORED, _REMOVED))
    elif isinstance(raw, dict) and isinstance(raw.get("type"), str):
        kind = raw["type"]
        stored = removed = raw
    else:
        raise EventFormatError(f"KV events: expected an event, got {str(raw)[:80]}")
    if kind == "BlockStored":
        return _stored(stored)
    if kind == "BlockRemoved":
        return BlockRemoved(
            block_hashes=_hashes(removed.get("block_hashes")),
            medium=_text("medium", removed.get("medium")),
            group_idx=_optional_whole("group_idx", removed.get("group_idx")),
        )
    return AllBlocksCleared() if kind == "AllBlocksCleared" else None


def _stored(raw: Mapping[str, object]) -> BlockStored:
    """Return a BlockStored from its fields by name."""
    hashes = _hashes(raw.get("block_hashes"))
    block_size = _whole("block_size", raw.get("block_size"))
    token_ids = _token_ids(raw.get("token_ids"))
    parent = raw.get("parent_block_hash")
    extra_keys = raw.get("extra_keys")
    if extra_keys is not None and not isinstance(extra_keys, list):
        raise EventFormatError(
            f"KV events: extra_keys: expected one entry for each of {len(hashes)}"
        )
    stored = BlockStored(
        block_hashes=hashes,
        parent_block_hash=None if parent is None else _hash(parent),
        token_ids=token_ids,
        block_size=block_size,
        lora_id=_optional_whole("lora_id", raw.get("lora_id")),
        medium=_text("medium", raw.get("medium")),
        lora_name=_text("lora_name", raw.get("lora_name")),
        extra_keys=None if extra_keys is None else tuple(map(_extra, extra_keys)),
        group_idx=_optional_whole("group_idx", raw.get("group_idx")),
        kv_cache_spec_kind=_text("kv_cache_spec_kind", raw.get("kv_cache_spec_kind")),
        kv_cache_spec_sliding_window=_optional_whole(
            "kv_cache_spec_sliding_window", raw.get("kv_cache_spec_sliding_window")
        ),
    )
    _check(stored)
    return stored


def _check(event: BlockStored) -> None:
    """Refuse blocks and tokens that do not fit together, where blocks are known by their tokens.

    Of others names alone matter, and engines are free with the rest: they name the blocks that a
    sliding window has kept beside the tokens of all, and offloaded ones without any.
    """
    tokens, blocks = len(event.token_ids), len(event.block_hashes)
    extra = event.extra_keys
    fits = event.block_size > 0 and tokens == blocks * event.block_size
    if (fits and (extra is None or len(extra) == blocks)) or not event.counts:
        return
    if fits:
        raise EventFormatError(f"KV events: extra_keys: expected one entry for each of {blocks}")
    raise EventFormatError(
        f"KV events: expected {blocks} blocks of {event.block_size} tokens, got {tokens} tokens"
    )


def _hash(value: object) -> EngineHash:
    """Return a block hash: a number or bytes."""
    if isinstance(value, bytes) or type(value) is int:
        return value
    raise EventFormatError(f"KV events: expected a block hash, got {value!r:.80}")


def _hashes(value: object) -> tuple[EngineHash, ...]:
    """Return a list of block hashes."""
    if not isinstance(value, list):
        raise EventFormatError(f"KV events: block_hashes: expected a list, got {value!r:.80}")
    return tuple(map(_hash, value))


def _token_ids(value: object) -> tuple[int, ...]:
    """Return token ids, each of which fits into 32 bits."""
    if not isinstance(value, list):
        raise EventFormatError(f"KV events: token_ids: expected a list, got {value!r:.80}")
    try:
        return tuple(pack_tokens(value))
    except (OverflowError, TypeError) as error:
        raise EventFormatError(f"KV events: token_ids: {error}") from error


def _whole(name: str, value: object) -> int:
    """Return a whole number."""
    if type(value) is not int:
        raise EventFormatError(f"KV events: {name}: expected a whole number, got {value!r:.80}")
    return value


def _optional_whole(name: str, value: object) -> int | None:
    """Return a whole number or None."""
    return None if value is None else _whole(name, value)


def _text(name: str, value: object) -> str | None:
    """Return a text or None."""
    if value is None or isinstance(value, str):
        return value
    raise EventFormatError(f"KV events: {name}: expected a text, got {value!r:.80}")


def _extra(value: object) -> tuple[ExtraValue, ...] | None:
    """Return the extra keys of one block, lists as tuples."""
    if value is None:
        return None
    if not isinstance(value, list):
        raise EventFormatError(f"KV events: extra_keys: expected a list, got {value!r:.80}")
    return tuple(
        tuple(item) if isinstance(item, list) else cast("str | int | bytes", item) for item in value
    )


def _as_array(event: Event) -> list[object]:
    """Return an event as vLLM up to 0.23 encodes it, all fields present."""
    names = {BlockStored: _STORED, BlockRemoved: _REMOVED}.get(type(event), ())
    return [type(event).__name__, *(getattr(event, name) for name in names)]


def _as_map(event: Event) -> dict[str, object]:
    """Return an event as vLLM from 0.24 on encodes it, empty optional fields left out."""
    fields: dict[str, object] = {"type": type(event).__name__}
    if isinstance(event, BlockStored):
        names, required = _STORED, _STORED_OPTIONAL
    elif isinstance(event, BlockRemoved):
        names, required = _REMOVED, _REMOVED_OPTIONAL
    else:
        return fields
    for index, name in enumerate(names):
        value = getattr(event, name)
        if index < required or value is not None:
            fields[name] = value
    return fields
