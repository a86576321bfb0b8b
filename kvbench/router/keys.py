"""A request's body as a policy sees it: chain keys and sizes, without a tokenizer.

Theory. Two prompts share cached blocks as far as their tokens are the same, and their tokens are
the same as far as their text is. So the text is laid out in one canonical order (tools first, then
each message's role and content, as chat templates do), cut into pieces of 256 bytes, and each piece
is hashed with the key of the piece before it as its seed: equal keys, equal beginnings. A turn that
extends a conversation extends its text, and so its chain. Only whole pieces have keys, as only full
blocks are cached. The model and the cache salt are the seed of the first piece: prompts that may
not share a cache share no key. Prompts of token ids are laid out as four bytes an id.

Rules:

- The body is parsed once; a chat, an agent's too, straight into what is needed. What is not JSON is
  refused here (`BodyError`); what is JSON but no known shape has no keys and is passed on: it is
  for the pod to judge. JSON is what it is for vLLM: with NaN, infinities, and halves of surrogate
  pairs where no model reads them, up to 4 MiB. Such a body is read more slowly.
- A long body of very many values is read for its model only: 60 MiB of empty lists would take 20
  seconds, in which nobody else is served.
- Tokens are estimated from bytes, by what pods have counted so far (`BytesPerToken`). Token ids
  are counted.
- An image or a sound counts by its digest: its data is not prompt text. What an agent says to its
  tools and hears of them is.
- What clients say to servers and no model reads is left out, for it changes from turn to turn:
  Anthropic's marks of what to cache, and the block of Claude Code's that only billing wants.
"""

from __future__ import annotations

import json
import re
import struct
from array import array
from codecs import BOM_UTF8
from typing import TYPE_CHECKING, Final

import msgspec
import xxhash

from kvbench.policies.decision import RouteRequest
from kvbench.router.shapes import AGENTS, FIELDS, NAMED, ON, PLAIN, Agents, Fields, Opening, Plain

if TYPE_CHECKING:
    from kvbench.router.shapes import Beside

PIECE: Final = 256  # bytes of text, or 64 token ids
PIECE_TOKENS: Final = 64  # where tokens are known
_PIECES: Final = struct.Struct(f"{PIECE}s")
_ID_BYTES: Final = 4
_MOST_PIECES: Final = 8192  # 2 MiB of text: what comes after decides nothing
_STRETCH: Final = 16 * PIECE
_MOST_MESSAGES: Final = 20_000  # what a hostile client can make of them is no chat
_LONGEST_NAME: Final = 4096  # characters of a model's name that are kept: it may be a path
_NEAR_END: Final = 64  # bytes
_LONGEST_PYTHON: Final = 4 * 2**20  # bytes
_LONG: Final = 2**19  # bytes: what is shorter is read in a quarter of a second, whatever it is
_MOST_BRACKETS: Final = 100_000
_MOST_QUOTES: Final = 1_500_000
_MOST_COMMAS: Final = 2_000_000
_MOST_KNOWN: Final = 8192  # stretches; 700 bytes each
_MOST_LEADS: Final = 64
_LONGEST_LEAD: Final = 131_072  # bytes
_TYPICAL: Final = 4.0  # bytes of English per token, until a pod has counted
_MOST_MODELS: Final = 256  # whose ratio is kept apart
_WEIGHT: Final = 0.05  # of a new count in the ratio
_MARK: Final = "cache_control"
_APART: Final = frozenset({"role", "content", _MARK})  # of a message's fields
_TOOLS: Final = frozenset({"tool_use", "tool_result", "thinking"})  # parts that are text
_BILLING: Final = "x-anthropic-billing-header"
_LONE: Final = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F]"
)  # the first half of a surrogate pair without its second, or the second without its first
_HALF: Final = "half of a surrogate pair is no text"
_NAMES: Final = (
    "model", "cache_salt", "previous_response_id", "session_id", "prompt_cache_key", "user",
)  # fmt: skip
_digest: Final = xxhash.xxh3_64_intdigest
_known: dict[int, list[int]] = {}  # the keys of stretches, by their digest
_leads: dict[int, tuple[msgspec.Raw, bytes]] = {}  # texts of tools and systems, by their digest


class BodyError(ValueError):
    """The body of a request that must be routed by its prompt is not JSON."""


class Prompt(msgspec.Struct, frozen=True, gc=False):
    """What a body says that matters for routing.

    Attributes:
        model: Model name, "" if none.
        keys: Chain keys of the whole pieces.
        size: Bytes of the canonical text; for token ids, four an id.
        counted: Whether the tokens are known: the prompt is token ids.
        stream: Whether the answer was asked for as a stream.
        session: Session key in the body, if any.
        continues: Id of the response that it continues, "" if none.
        tells: Whether what its answer counts says what was cached: not of several prompts, which
            are counted together, nor where probabilities of the prompt are asked for, all of which
            is then computed.
    """

    model: str
    keys: tuple[int, ...]
    size: int
    counted: bool
    stream: bool
    session: str | None
    continues: str = ""
    tells: bool = True

    def request(self, identity: str, session: str, bytes_per_token: float) -> RouteRequest:
        """Return the request to route, its sizes in tokens; `session` "" if no header says it."""
        ratio = _ID_BYTES if self.counted else bytes_per_token
        return RouteRequest(
            id=identity,
            model=self.model,
            blocks=self.keys,
            block_tokens=max(round(PIECE / ratio), 1),
            prompt_tokens=round(self.size / ratio),
            session=session or self.session,
        )


def check_text(body: bytes) -> None:
    """Check that all of a body is text, also what nobody here reads.

    Raises:
        BodyError: It is not UTF-8.
    """
    if not body.isascii():
        try:
            body.decode()
        except UnicodeDecodeError as error:
            raise BodyError(f"The request body is not JSON: Invalid UTF-8: {error}") from None


def crowded(body: bytes) -> bool:
    """Return whether a body may hold so many values that reading them would hold up everybody."""
    return len(body) > _LONG and (
        body.count(b"[") + body.count(b"{") > _MOST_BRACKETS
        or body.count(b'"') > _MOST_QUOTES
        or body.count(b",") > _MOST_COMMAS
    )


def read_prompt(body: bytes) -> Prompt:
    """Return what the body of a chat or a text completion, a response or a message says.

    Raises:
        BodyError: It is not JSON, or no object; the message says where.
    """
    if crowded(body):
        return read_any(body, whole=False)
    try:
        plain = read_chat(body)
        first = opening(plain)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return read_any(body)
    data = first.tail + canonical(plain)
    keys = (*first.keys, *chain(data, first.key))
    return plain_prompt(plain, keys, len(first.keys) * PIECE + len(data))


def read_chat(body: bytes) -> Plain | Agents:
    """Return a chat.

    Raises:
        DecodeError, UnicodeDecodeError, RecursionError: It is none, or has messages of other kinds.
    """
    try:
        return PLAIN.decode(body)
    except msgspec.ValidationError:
        return AGENTS.decode(body)


def canonical(chat: Plain | Agents) -> bytes:
    """Return the canonical text of a chat's messages."""
    if isinstance(chat, Plain):
        text = "".join([f"\x02{said.role}\x03{said.content}" for said in chat.messages])
        return text.encode("utf-8", "surrogatepass")
    said = list[str]()
    for told in chat.messages:
        fields = msgspec.structs.asdict(told)
        del fields[_MARK]
        _say(fields, said)
    return "".join(said).encode("utf-8", "surrogatepass")


def opening(plain: Beside) -> Opening:
    """Return what stands before a chat's messages.

    Raises:
        DecodeError, UnicodeDecodeError, RecursionError: It is no JSON.
    """
    key = _first_key(f"chat\x1f{plain.model or None}\x1f{plain.cache_salt or None}")
    if not plain.tools and not plain.system:
        return Opening([], key, b"")
    data = _lead_text(plain.tools, system=False) + _lead_text(plain.system, system=True)
    keys = chain(data, key)
    return Opening(keys, keys[-1] if keys else key, data[len(keys) * PIECE :])


def _lead_text(raw: msgspec.Raw, *, system: bool) -> bytes:
    """Return the text of tools, or of what the system is told: they are often the same."""
    if not raw:
        return b""
    mark = _digest(raw, int(system))
    known, text = _leads.get(mark, (None, b""))
    if known != raw:
        value = msgspec.json.decode(raw)
        said = _system_text(value) if system else _tools_text(value)
        text = said.encode("utf-8", "surrogatepass")
        if len(text) <= _LONGEST_LEAD:
            if len(_leads) >= _MOST_LEADS:
                _leads.clear()
            _leads[mark] = (raw.copy(), text)
    return text


def _tools_text(tools: object) -> str:
    """Return the text of tools."""
    return _json(tools) if tools else ""


def _system_text(lead: object) -> str:
    """Return the text of what is said to the system in a field of its own."""
    said = list[str]()
    if lead:
        _say({"role": "system", "content": lead}, said)
    return "".join(said)


def plain_prompt(plain: Beside, keys: tuple[int, ...], size: int) -> Prompt:
    """Return the prompt of a chat, given its keys and the size of its text."""
    return Prompt(
        model=(plain.model or "")[:_LONGEST_NAME],
        keys=keys,
        size=size,
        counted=False,
        stream=plain.stream in ON,
        session=plain.session_id or plain.prompt_cache_key or plain.user or None,
        tells=plain.prompt_logprobs is None,
    )


def read_any(body: bytes, *, whole: bool = True) -> Prompt:
    """Return the same for a body of any kind; its model only, if not of the `whole` of it."""
    fields = _fields(body, whole=whole)
    try:
        kind, data, size = _layout(fields)
    except UnicodeEncodeError:
        raise BodyError(f"The request body is not JSON: {_HALF}") from None
    except RecursionError:
        kind, data, size = "unknown", b"", 0
    model, salt = _text(fields.get("model")), _text(fields.get("cache_salt"))
    before = _text(fields.get("previous_response_id"))  # of which this is the continuation
    counted = kind == "ids"
    kind = f"{kind}\x1f{before}" if before else kind
    if fields.get("features"):  # pictures, whose places in the ids all look alike
        kind += f"\x1f{_digest(_json(fields['features']).encode())}"
    session = map(_text, map(fields.get, ("session_id", "prompt_cache_key", "user")))
    return Prompt(
        model=(model or "")[:_LONGEST_NAME],
        keys=tuple(chain(data, _first_key(f"{kind}\x1f{model}\x1f{salt}"))),
        size=size,
        counted=counted,
        stream=fields.get("stream") in ON,
        session=next(filter(None, session), None),
        continues=before or "",
        tells=_tells(fields),
    )


def _fields(body: bytes, *, whole: bool) -> dict[str, object]:
    """Return the fields that are read of a body; its model only, if not of the `whole` of it.

    Raises:
        BodyError: It is not JSON, or no object.
    """
    try:
        return FIELDS.decode(body).given() if whole else {"model": NAMED.decode(body).model}
    except RecursionError:
        raise BodyError("The request body is nested too deeply.") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if str(error).startswith("Expected `object`"):
            raise BodyError("The request body is JSON, but not an object.") from None
        fields = _as_python(body) if whole else None
        if fields is not None:
            return fields
        halved = "surrogate" in str(error) or _LONE.search(body[-_NEAR_END:])  # or "truncated"
        raise BodyError(f"The request body is not JSON: {_HALF if halved else error}") from None


def _as_python(body: bytes) -> dict[str, object] | None:
    """Return the fields of an object that is JSON for Python, and so for vLLM; None if it is none.

    It may have NaN and infinities, and halves of surrogate pairs; of these, names are rid here.
    That takes a quarter of a second at most.
    """
    if len(body) > _LONGEST_PYTHON or crowded(body):
        return None
    try:
        found = json.loads(body.decode())
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    fields = {name: found[name] for name in Fields.__struct_fields__ if name in found}
    for name in _NAMES:
        value = fields.get(name)
        if isinstance(value, str):
            fields[name] = value.encode(errors="replace").decode()
    return fields


def _tells(fields: dict[str, object]) -> bool:
    """Return whether an answer's counts say what was cached of its prompt."""
    prompt, sampling = fields.get("prompt"), fields.get("sampling_params")
    asked = fields.get("logprobs") if fields.get("echo") is True else None
    if isinstance(sampling, dict):
        asked = sampling.get("prompt_logprobs", asked)
    several = isinstance(prompt, list) and len(prompt) > 1 and not isinstance(prompt[0], int)
    return not several and asked is None and fields.get("prompt_logprobs") is None


def read_model(body: bytes) -> str:
    """Return the model that a body asks for; "" if it asks for none, or is no JSON."""
    plain = body.removeprefix(BOM_UTF8)
    try:
        model = NAMED.decode(plain).model
    except (msgspec.MsgspecError, UnicodeDecodeError):
        model = (_as_python(plain) or {}).get("model")
    except RecursionError:
        return ""
    return (_text(model) or "")[:_LONGEST_NAME]


class BytesPerToken:
    """How many bytes of canonical text a token stands for, by model, as pods have counted."""

    def __init__(self) -> None:
        self._ratios: dict[str, float] = {}

    def of(self, model: str) -> float:
        """Return the ratio for a model; a typical one while nothing is known."""
        return self._ratios.get(model, _TYPICAL)

    def learn(self, model: str, size: int, tokens: int) -> None:
        """Take note that `size` bytes were `tokens` tokens."""
        if size < PIECE or tokens < 1:
            return
        ratio = min(max(size / tokens, 0.25), 64.0)
        known = self._ratios.get(model)
        if known is not None:
            self._ratios[model] = known + _WEIGHT * (ratio - known)
        elif len(self._ratios) < _MOST_MODELS:
            self._ratios[model] = ratio


def _text(value: object) -> str | None:
    """Return the value if it is a string with something in it."""
    return value if isinstance(value, str) and value else None


def _first_key(seed: str) -> int:
    return _digest(seed.encode("utf-8", "surrogatepass"))


def chain(data: bytes, key: int) -> list[int]:
    """Return the keys of the whole pieces of `data`, which comes after the piece of that key."""
    whole = min(len(data) // PIECE, _MOST_PIECES) * PIECE
    view, keys = memoryview(data)[:whole], list[int]()
    for start in range(0, whole, _STRETCH):
        keys += _stretch(view[start : start + _STRETCH], keys[-1] if keys else key)
    return keys


def _stretch(data: memoryview, key: int) -> list[int]:
    """Return the keys of the pieces of a stretch that comes after the piece of that key.

    Long prompts begin as earlier ones did, so stretches are known again by one digest each.
    """
    mark = _digest(data, key)
    keys = _known.get(mark)
    if keys is None:
        keys = [key := _digest(piece, key) for (piece,) in _PIECES.iter_unpack(data)]
        if len(data) == _STRETCH:
            if len(_known) >= _MOST_KNOWN:
                _known.clear()
            _known[mark] = keys
    return keys


def _layout(fields: dict[str, object]) -> tuple[str, bytes, int]:
    """Return the kind of prompt, its first canonical bytes, and the size of all of it.

    Raises:
        UnicodeEncodeError: Half of a surrogate pair is in its text.
    """
    messages, prompt = _messages(fields), fields.get("prompt", fields.get("token_ids"))
    if messages is not None and len(messages) > _MOST_MESSAGES:
        return "unknown", b"", 0
    if messages is not None:
        data = _chat(messages, fields.get("tools")).encode()
        return "chat", data, len(data)
    batch = prompt if isinstance(prompt, list) else [prompt]
    if batch and isinstance(batch[0], int):
        batch = [batch]
    first = batch[0] if batch else None
    if isinstance(first, str):
        size = sum(len(text) for text in batch[1:] if isinstance(text, str))
        data = first.encode()
        return "text", data, len(data) + size
    if isinstance(first, list):
        try:
            data = array("I", first).tobytes()
        except (TypeError, OverflowError):
            return "unknown", b"", 0
        return "ids", data, _ID_BYTES * sum(len(ids) for ids in batch if isinstance(ids, list))
    return "unknown", b"", 0


def _messages(fields: dict[str, object]) -> list[object] | None:
    """Return the messages of a chat in whichever API's form, or None if it is no chat.

    A chat completion has `messages`; Anthropic's form has `system` beside them; OpenAI's responses
    have `instructions` and `input`. Said first, either of these is a message of the system.
    """
    messages, lead = fields.get("messages"), fields.get("system")
    if not isinstance(messages, list) and "prompt" not in fields:
        messages, lead = fields.get("input"), fields.get("instructions")
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
    if not isinstance(messages, list):
        return None
    return [{"role": "system", "content": lead}, *messages] if lead else messages


def _chat(messages: list[object], tools: object) -> str:
    """Return the text of a chat: what the template would lay out, in its order."""
    said = [_json(tools)] if tools else []
    for message in messages:
        if isinstance(message, dict):
            _say(message, said)
        else:
            said.append(_json(message))
    return "".join(said)


def _say(message: dict[str, object], said: list[str]) -> None:
    """Put the text of a message, or of a part that is as much, behind what was said."""
    content = message.get("content")
    said.append(f"\x02{message.get('role')}\x03")
    if isinstance(content, str):
        said.append(content)
    elif isinstance(content, list):
        said.append("\n".join(map(_part, content)))
    if not message.keys() <= _APART:
        rest = {
            name: value
            for name, value in message.items()
            if value is not None and name not in _APART
        }
        if rest:
            said.append(_json(rest))


def _part(part: object) -> str:
    """Return the text of one part of a content; anything else as a digest."""
    if isinstance(part, str):
        return part
    if isinstance(part, dict):
        text = part.get("text")
        if isinstance(text, str):
            return "" if text.startswith(_BILLING) else text
        if part.get("type") in _TOOLS:
            said = list[str]()
            _say(part, said)
            return "".join(said)
    return xxhash.xxh3_128_hexdigest(_json(part).encode("utf-8", "surrogatepass"))


def _json(value: object) -> str:
    """Return compact JSON with sorted keys, without a mark of what to cache."""
    if isinstance(value, dict) and _MARK in value:
        value = {key: one for key, one in value.items() if key != _MARK}
    try:
        return msgspec.json.encode(value, order="sorted").decode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return json.dumps(value, sort_keys=True)
