"""A prompt's token ids and block hashes, as the pod will have them: what exact routing begins with.

Nothing is asked of a pod while a request waits. A model's tokenizer and chat template are read from
a directory of this machine, and of a conversation's next turn only what is new is encoded and
hashed (`PrefixStore`, `ChainStore`).

Rules:

- Exact or not at all. A body with anything in it that the template might see and this module cannot
  lay out (tools, pictures, template arguments, a developer, …) has no tokens here, and is routed by
  estimate. So is one that asks for the probabilities of its prompt, all of which is then computed,
  and what is so large that it would hold up the others.
- A model whose tokens turn out to be others than the pod's is given up, with the first difference
  in words: when a pod's `/tokenize` says so in the beginning, or when more than two requests, and
  more than one in a hundred, were counted differently by the pod that served them.
- A LoRA adapter is tokenised as its base model, and its name is part of its blocks.
"""

from __future__ import annotations

import logging
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec
import xxhash

from kvbench.errors import InputError
from kvbench.kvcache.blocks import PromptKeys
from kvbench.kvcache.chains import ChainStore
from kvbench.router.keys import Prompt
from kvbench.text.prefix_store import PrefixStore, Tokens
from kvbench.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kvbench.text.prefix_store import Lookup

logger = logging.getLogger(__name__)

_ID_PIECE = 1024  # token ids of a prompt that is hashed piece by piece
_TEXT_MARK = 1 << 127  # tells a text that gets a beginning-of-text token from a chat of the same
_MOST_BYTES = 4 * 2**20  # of a body: a million tokens
_MOST_MESSAGES = 2000  # laying them out takes five milliseconds
_MOST_MISCOUNTED = 2
_MISCOUNTED_SHARE = 0.01


class _Part(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    type: Literal["text"]
    text: str


class _Message(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A message of which everything is known that a template might print.

    Other roles are not there: vLLM makes a developer a system, unless a template has one.
    """

    role: Literal["system", "user", "assistant"]
    content: str | list[_Part]
    name: None = None
    tool_calls: None = None
    function_call: None = None
    refusal: None = None
    audio: None = None
    annotations: None = None
    reasoning: None = None
    reasoning_content: None = None

    @property
    def text(self) -> str:
        """Its text, as a server makes one of several parts."""
        content = self.content
        return content if isinstance(content, str) else "\n".join(part.text for part in content)

    @property
    def parts(self) -> list[dict[str, str]]:
        """Its parts, as a server makes one of a text."""
        content = self.content
        texts = [content] if isinstance(content, str) else [part.text for part in content]
        return [{"type": "text", "text": text} for text in texts]


class _Body(msgspec.Struct):
    """What of a body decides which tokens the prompt has; None is what may not be there."""

    model: str = ""
    stream: bool | None = False
    session_id: str | None = None
    prompt_cache_key: str | None = None
    user: str | None = None
    cache_salt: str | None = None
    tools: list[msgspec.Raw] | None = None
    documents: None = None
    chat_template: None = None
    chat_template_kwargs: dict[str, msgspec.Raw] | None = None
    reasoning_effort: None = None
    truncate_prompt_tokens: None = None
    prompt_embeds: None = None
    mm_processor_kwargs: None = None
    features: None = None
    prompt_logprobs: None = None  # for which all of the prompt is computed, whatever is cached


class _Chat(_Body, kw_only=True):
    messages: list[_Message]
    add_generation_prompt: bool = True
    add_special_tokens: Literal[False] | None = None
    continue_final_message: Literal[False] | None = None


class _Completion(_Body, kw_only=True):
    prompt: str | list[int]
    add_special_tokens: bool | None = None
    echo: Literal[False] | None = None  # may want probabilities of the prompt


class _Sampling(msgspec.Struct):
    prompt_logprobs: None = None


class _Generation(_Body, kw_only=True):
    token_ids: list[int]
    sampling_params: _Sampling | None = None


Body: TypeAlias = _Chat | _Completion | _Generation

_FORMS: dict[
    str,
    msgspec.json.Decoder[_Chat]
    | msgspec.json.Decoder[_Completion]
    | msgspec.json.Decoder[_Generation],
] = {
    "/v1/chat/completions": msgspec.json.Decoder(_Chat),
    "/v1/completions": msgspec.json.Decoder(_Completion),
    "/inference/v1/generate": msgspec.json.Decoder(_Generation),
}


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


@dataclass(slots=True)
class ModelTokens:
    """A model's tokenizer, and what has been tokenised and hashed with it.

    Attributes:
        name: The model's name.
        tokenizer: Its tokenizer.
        lora: The adapter's name, None for a base model.
        trouble: Why its tokens are not to be relied on, None if they are.
        checked: Requests whose tokens the pod has counted too.
        miscounted: Of these, those where it counted others.
    """

    name: str
    tokenizer: Tokenizer
    store: PrefixStore
    lora: str | None = None
    trouble: str | None = None
    checked: int = 0
    miscounted: int = 0
    _chains: dict[int, ChainStore] = field(default_factory=dict)
    _around: tuple[list[int], list[int]] | None = None

    def chains(self, block_size: int) -> ChainStore:
        """Return the store for blocks of that size."""
        if block_size not in self._chains:
            self._chains[block_size] = ChainStore(block_size)
        return self._chains[block_size]

    def around_text(self) -> tuple[list[int], list[int]]:
        """Return the special tokens that are put before and behind a text that is no chat.

        Raises:
            InputError: They depend on the text.
        """
        if self._around is None:
            bare = self.tokenizer.encode("a")
            full = self.tokenizer.encode("a", add_special_tokens=True)
            extra = len(full) - len(bare)
            found = [n for n in range(extra + 1) if full[n : n + len(bare)] == bare]
            if not found:
                raise InputError("special tokens depend on the text")
            self._around = (full[: found[0]], full[found[0] + len(bare) :])
        return self._around

    def count(self, ours: int, theirs: int) -> bool:
        """Compare our count of a prompt with the pod's; return whether they agree."""
        self.checked += 1
        if ours == theirs:
            return True
        self.miscounted += 1
        many = self.miscounted > _MOST_MISCOUNTED
        if many and self.miscounted > _MISCOUNTED_SHARE * self.checked and self.trouble is None:
            self.distrust(
                f"the pod counted {theirs} prompt tokens where ours are {ours}: it has another "
                "tokenizer or chat template"
            )
        return False

    def distrust(self, why: str) -> None:
        """Rely on its tokens no more."""
        self.trouble = why
        logger.warning("%s is routed by estimate from now on: %s", self.name, why)


@dataclass(frozen=True, slots=True)
class Reading:
    """A prompt laid out, whose tokens may have to be made yet.

    Attributes:
        model: Whose tokens.
        lookup: What of its text is known, None if the prompt is token ids.
        ids: Those ids.
        keys: What besides tokens decides what it shares.
        is_text: Whether it is a text, which gets special tokens around it.
        prompt: What else of the body matters for routing.
    """

    prompt: Prompt
    model: ModelTokens
    lookup: Lookup | None
    ids: Sequence[int]
    keys: PromptKeys
    is_text: bool = False

    @property
    def characters(self) -> int:
        """How much text there is to encode."""
        return 0 if self.lookup is None else self.lookup.characters

    def encode(self) -> list[list[int]]:
        """Return the ids of what must be encoded: may be done in a thread, as it takes long."""
        return [] if self.lookup is None else self.model.tokenizer.encode_batch(self.lookup.todo)

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
            found.append(ModelTokens(name, tokenizer, PrefixStore(tokenizer), lora))
            self.models[name] = found[-1]
        return found

    def parse(self, path: str, body: bytes) -> Body | None:
        """Return what a body says; None if its tokens cannot be told for certain."""
        form = _FORMS.get(path)
        if form is None or len(body) > _MOST_BYTES:
            return None
        try:
            parsed = form.decode(body)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return None
        known = self._model(parsed.model)
        if known is None or known.trouble is not None:
            return None
        return None if parsed.tools or parsed.chat_template_kwargs else parsed

    def lay_out(self, body: Body) -> Reading | None:
        """Return a prompt laid out; None if the model's template refuses it."""
        model = self._model(body.model)
        if model is None:
            return None
        try:
            return _lay_out(model, body)
        except (UnicodeError, InputError, OverflowError):
            return None

    def _model(self, name: str) -> ModelTokens | None:
        """Return a model; the only one there is, if none is named."""
        if not name and len(self.models) == 1:
            return next(iter(self.models.values()))
        return self.models.get(name)


def _lay_out(model: ModelTokens, body: Body) -> Reading | None:
    """Return a body's prompt laid out."""
    prompt = Prompt(
        model=body.model,
        keys=(),
        size=0,
        counted=True,
        stream=body.stream is True,
        session=body.session_id or body.prompt_cache_key or body.user or None,
    )
    keys = PromptKeys(body.cache_salt or None, model.lora)
    if isinstance(body, _Chat):
        if len(body.messages) > _MOST_MESSAGES:
            return None
        text = _chat_text(model.tokenizer, body)
        if text is None:
            return None
        return Reading(prompt, model, model.store.lookup(text), (), keys)
    if isinstance(body, _Generation):
        return Reading(prompt, model, None, array("I", body.token_ids), keys)
    if isinstance(body.prompt, str):
        special = body.add_special_tokens is not False
        if special:
            model.around_text()
        lookup = model.store.lookup(body.prompt)
        return Reading(prompt, model, lookup, (), keys, is_text=special)
    return Reading(prompt, model, None, array("I", body.prompt), keys)


def _chat_text(tokenizer: Tokenizer, body: _Chat) -> str | None:
    """Return a chat's text; None if it depends on how contents are handed to the template.

    A server hands a template that may loop over parts a list of them, even where the client sent a
    text. Whether it takes a template for such a one is not known here, so both must come out alike.
    """
    ends = body.add_generation_prompt
    whole = [{"role": one.role, "content": one.text} for one in body.messages]
    text = tokenizer.render_chat(whole, add_generation_prompt=ends)
    if not tokenizer.reads_parts:
        return text
    parts = [{"role": one.role, "content": one.parts} for one in body.messages]
    return text if tokenizer.render_chat(parts, add_generation_prompt=ends) == text else None


def _id_marks(ids: array[int]) -> list[tuple[int, int]]:
    """Return marks for the beginnings of a prompt of token ids."""
    marks, mark = [], 0
    for end in range(_ID_PIECE, len(ids) + 1, _ID_PIECE):
        piece = ids[end - _ID_PIECE : end].tobytes()
        mark = xxhash.xxh3_128_intdigest(piece, seed=mark & 0xFFFF_FFFF_FFFF_FFFF)
        marks.append((mark, end))
    return marks


def _local(root: object) -> Tokenizer | None:
    """Return the tokenizer in a directory, None if there is none."""
    if not isinstance(root, str) or not (Path(root) / "tokenizer.json").is_file():
        return None
    try:
        return Tokenizer.load(root)
    except InputError as error:
        logger.warning("the tokenizer in %s cannot be read: %s", root, error.message)
        return None
