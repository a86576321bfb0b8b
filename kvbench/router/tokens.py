"""A prompt's token ids and block hashes, as the pod will have them: what exact routing begins with.

Nothing is asked of a pod while a request waits. A model's tokenizer and chat template are read from
a directory of this machine, and of a conversation's next turn only what is new is encoded and
hashed (`PrefixStore`, `ChainStore`).

Rules:

- Exact or not at all. A body with anything in it that the template might see and this module cannot
  lay out (pictures, documents, …) has no tokens here, and is routed by estimate; what
  of messages and tools a template sees says `kvbench.text.conversation`. So is one that asks for
  the probabilities of its prompt, all of which is then computed, and what is so large that it would
  hold up the others.
- A model whose tokens turn out to be others than the pod's is given up, with the first difference
  in words: when a pod's `/tokenize` says so in the beginning, or when more than two requests, and
  more than one in a hundred, were counted differently by the pod that served them. Prompts of
  another form than the plain one are given up alone (`kvbench.router.model_tokens`).
- A LoRA adapter is tokenised as its base model, and its name is part of its blocks.
"""

from __future__ import annotations

import contextlib
import logging
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import xxhash

from kvbench.errors import InputError
from kvbench.kvcache.blocks import PromptKeys
from kvbench.router.conversations import Body
from kvbench.router.keys import BodyError, Prompt, check_text
from kvbench.router.model_tokens import ModelTokens, laid_out
from kvbench.router.shapes import ON, Off, Switch
from kvbench.router.talks import KnownTalks, Talk
from kvbench.text.prefix_store import PrefixStore, Rendered, Tokens
from kvbench.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kvbench.text.conversation import Spoken
    from kvbench.text.prefix_store import Lookup

logger = logging.getLogger(__name__)

_ID_PIECE = 1024  # token ids of a prompt that is hashed piece by piece
_MOST_BY_WORDS = 4096  # characters: more is encoded where no other request waits for it
_TEXT_MARK = 1 << 127  # tells a text that gets a beginning-of-text token from a chat of the same
_MOST_BYTES = 4 * 2**20  # of a body: a million tokens
_WITHOUT_TEMPLATE = frozenset({"gpt_oss"})  # which vLLM lays out by Harmony


class _Configuration(msgspec.Struct):
    model_type: str = ""


class _Completion(Body, kw_only=True):
    prompt: str | list[int]
    add_special_tokens: Switch = True
    echo: Off | None = None  # may want probabilities of the prompt


class _Sampling(msgspec.Struct):
    prompt_logprobs: None = None


class _Generation(Body, kw_only=True):
    token_ids: list[int]
    sampling_params: _Sampling | None = None


_TALKS: Final = {"/v1/chat/completions": 0, "/v1/messages": 1, "/v1/responses": 2}
_FORMS: Final[dict[str, msgspec.json.Decoder[_Completion] | msgspec.json.Decoder[_Generation]]] = {
    "/v1/completions": msgspec.json.Decoder(_Completion),
    "/inference/v1/generate": msgspec.json.Decoder(_Generation),
}


@dataclass(frozen=True, slots=True)
class Parsed:
    """What a body says.

    Attributes:
        body: The body, or what of it is not known.
        before: What is known: it was said before the body's messages.
    """

    body: Talk | _Completion | _Generation
    before: Sequence[Spoken] = ()

    @property
    def model(self) -> str:
        """The model asked for, "" if none is."""
        return self.body.model


class Exact(msgspec.Struct, frozen=True, gc=False):
    """A prompt whose tokens are known.

    Attributes:
        prompt_tokens: How many there are.
        hashes: Of the blocks that an engine might reuse.
        block_size: Tokens per block.
    """

    prompt_tokens: int
    hashes: Sequence[int]
    block_size: int


@dataclass(frozen=True, slots=True)
class Reading:
    """A prompt laid out, whose tokens may have to be made yet.

    Attributes:
        model: Whose tokens.
        lookup: What of its text is known, None if the prompt is token ids.
        ids: Those ids.
        keys: What besides tokens decides what it shares.
        is_text: Whether it is a text, which gets special tokens around it.
        form: Its form, one of `FORMS`.
        prompt: What else of the body matters for routing.
    """

    prompt: Prompt
    model: ModelTokens
    lookup: Lookup | None
    ids: Sequence[int]
    keys: PromptKeys
    is_text: bool = False
    form: str = ""

    @property
    def characters(self) -> int:
        """How much text there is to encode."""
        return 0 if self.lookup is None else self.lookup.characters

    def encode(self) -> Sequence[Sequence[int]]:
        """Return the ids of what must be encoded: may be done in a thread, if it takes long."""
        if self.lookup is None:
            return []
        short = self.characters <= _MOST_BY_WORDS
        encoder = self.model.words if short else self.model.tokenizer
        return encoder.encode_batch(self.lookup.todo)

    def finish(self, encoded: Sequence[Sequence[int]], block_size: int) -> Exact:
        """Return the prompt's tokens, given what was encoded, in blocks of that size."""
        tokens = self._tokens(encoded)
        hashes = self.model.chains(block_size).hashes(tokens.since, tokens.marks, self.keys)
        del hashes[max(tokens.count - 1, 0) // block_size :]
        return Exact(tokens.count, hashes, block_size)

    def _tokens(self, encoded: Sequence[Sequence[int]]) -> Tokens:
        """Return the ids, with the marks of beginnings."""
        if self.lookup is None:
            ids = array("I", self.ids)
            return Tokens.of(ids, _id_marks(ids), 0)
        tokens = self.model.store.complete(self.lookup, encoded)
        if not self.is_text:
            return tokens
        before, behind = self.model.around_text()
        ids = array("I", before) + tokens.ids + array("I", behind)
        marks = [(mark ^ _TEXT_MARK, end + len(before)) for mark, end in tokens.marks]
        return Tokens.of(ids, marks, tokens.encoded)


class PromptTokens:
    """The models whose tokens are known.

    Args:
        tokenizer: Directory of the tokenizer of all models; None takes each model's own root, if
            that is a directory of this machine.

    Raises:
        InputError: The tokenizer given is none.
    """

    def __init__(self, tokenizer: Path | None = None) -> None:
        self._given = None if tokenizer is None else Tokenizer.load(tokenizer)
        self.models: dict[str, ModelTokens] = {}
        self._talks = KnownTalks()
        self._without: set[str] = set()

    def knows(self, names: Iterable[str]) -> bool:
        """Return whether nothing new would be learned of these models."""
        return all(name in self.models or name in self._without for name in names)

    def learn(self, entries: Mapping[str, Mapping[str, object]]) -> list[ModelTokens]:
        """Take note of models as a pod lists them; return those that are new and have tokens.

        Reads files: call it in a thread.
        """
        found = []
        for name, entry in entries.items():
            if name in self.models or name in self._without:
                continue
            parent = entry.get("parent")
            base = entries.get(parent, entry) if isinstance(parent, str) else entry
            tokenizer = self._given or _local(base.get("root"))
            if tokenizer is None:
                self._without.add(name)
                continue
            lora = name if parent is not None else None
            model = ModelTokens(name, tokenizer, PrefixStore(tokenizer), lora)
            assert model.words is not None  # made here, where it holds up nobody
            if _of_kind(tokenizer.path, base.get("root")) in _WITHOUT_TEMPLATE:
                model.by_template = False
                logger.info(
                    "%s: its chats are routed by estimate, for no template makes them", name
                )
            found.append(model)
            self.models[name] = model
        return found

    def parse(self, path: str, body: bytes) -> Parsed | None:
        """Return what a body says; None if its tokens cannot be told for certain.

        Raises:
            BodyError: It says something, and is not UTF-8.
        """
        kind, form, done = _TALKS.get(path), _FORMS.get(path), 0
        if (kind is None and form is None) or len(body) > _MOST_BYTES:
            return None
        try:
            if kind is not None:
                talk, before, done = self._talks.read(kind, body)
                parsed = Parsed(talk, before)
            elif form is not None:
                parsed = Parsed(form.decode(body))
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return None
        known = self._model(parsed.model)
        if known is None or known.trouble is not None:
            return None
        _check_rest(body, done)
        return parsed

    def lay_out(self, parsed: Parsed) -> Reading | None:
        """Return a prompt laid out; None if the model's template refuses it."""
        model = self._model(parsed.model)
        if model is None:
            return None
        try:
            return _lay_out(model, parsed.body, parsed.before)
        except (ValueError, InputError, OverflowError, RecursionError):
            return None

    def _model(self, name: str) -> ModelTokens | None:
        """Return a model; the only one there is, if none is named."""
        if not name and len(self.models) == 1:
            return next(iter(self.models.values()))
        return self.models.get(name)


def _check_rest(body: bytes, done: int) -> None:
    """Check that a body is text, what nobody here reads of it too, from so many bytes on.

    Raises:
        BodyError: It is not UTF-8.
    """
    try:
        check_text(body[done:] if done else body)
    except BodyError:
        check_text(body)  # which says where in the body


def _lay_out(
    model: ModelTokens, body: Talk | _Completion | _Generation, before: Sequence[Spoken]
) -> Reading | None:
    """Return a body's prompt laid out."""
    prompt = Prompt(
        model=body.model,
        keys=(),
        size=0,
        counted=True,
        stream=body.stream in ON,
        session=body.session_id or body.prompt_cache_key or body.user or None,
    )
    keys = PromptKeys(body.cache_salt or None, model.lora)
    if isinstance(body, Talk):
        found = laid_out(model, body, before)
        if found is None:
            return None
        form, parts = found
        lookup = model.store.lookup_parts(parts, _rendered(before))
        return Reading(prompt, model, lookup, (), keys, form=form)
    if isinstance(body, _Generation):
        return Reading(prompt, model, None, array("I", body.token_ids), keys)
    if isinstance(body.prompt, str):
        special = body.add_special_tokens in ON
        if special:
            model.around_text()
        lookup = model.store.lookup(body.prompt)
        return Reading(prompt, model, lookup, (), keys, is_text=special)
    return Reading(prompt, model, None, array("I", body.prompt), keys)


def _rendered(before: Sequence[Spoken]) -> Rendered:
    """Return the last text of a conversation that begins with these messages."""
    if not before:
        return Rendered()
    last = before[-1]
    if last.rendered is None:
        last.rendered = Rendered()
    return last.rendered


def _id_marks(ids: array[int]) -> list[tuple[int, int]]:
    """Return marks for the beginnings of a prompt of token ids."""
    marks, mark = [], 0
    for end in range(_ID_PIECE, len(ids) + 1, _ID_PIECE):
        piece = ids[end - _ID_PIECE : end].tobytes()
        mark = xxhash.xxh3_128_intdigest(piece, seed=mark & 0xFFFF_FFFF_FFFF_FFFF)
        marks.append((mark, end))
    return marks


def _of_kind(*directories: object) -> str:
    """Return the kind of model that a configuration in the directories tells of, "" if none."""
    for directory in directories:
        with contextlib.suppress(OSError, TypeError, msgspec.MsgspecError, UnicodeDecodeError):
            file = Path(directory) / "config.json"  # type: ignore[arg-type]  # TypeError: no path
            return msgspec.json.decode(file.read_bytes(), type=_Configuration).model_type
    return ""


def _local(root: object) -> Tokenizer | None:
    """Return the tokenizer in a directory, None if there is none."""
    if not isinstance(root, str) or not (Path(root) / "tokenizer.json").is_file():
        return None
    try:
        return Tokenizer.load(root)
    except InputError as error:
        logger.warning("the tokenizer in %s cannot be read: %s", root, error.message)
        return None
