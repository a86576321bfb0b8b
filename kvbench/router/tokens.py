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
  another form than the plain one (`FORMS`) are given up alone.
- A LoRA adapter is tokenised as its base model, and its name is part of its blocks.
"""

from __future__ import annotations

import contextlib
import logging
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import msgspec
import xxhash

from kvbench.errors import InputError
from kvbench.kvcache.blocks import PromptKeys
from kvbench.kvcache.chains import ChainStore
from kvbench.router.conversations import Body, Chat, Messages
from kvbench.router.inputs import Responses
from kvbench.router.keys import Prompt
from kvbench.text.conversation import handed_over
from kvbench.text.prefix_store import PrefixStore, Tokens
from kvbench.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kvbench.router.conversations import Conversation
    from kvbench.text.prefix_store import Lookup

logger = logging.getLogger(__name__)

_ID_PIECE = 1024  # token ids of a prompt that is hashed piece by piece
_TEXT_MARK = 1 << 127  # tells a text that gets a beginning-of-text token from a chat of the same
_MOST_BYTES = 4 * 2**20  # of a body: a million tokens
_MOST_MESSAGES = 2000  # laying them out takes five milliseconds
_MOST_OF_TOOLS = 2**19  # bytes; also of all that they were called with
_MOST_MISCOUNTED = 2
_MISCOUNTED_SHARE = 0.01
FORMS: Final = {
    "": "everything",
    "parts": "chats with contents of several parts",
    "tools": "chats with tools, thoughts or template arguments",
    "messages": "Anthropic's messages",
    "responses": "responses",
}
"""Forms of prompts: each is trusted apart, and none if the first is not."""


class _Completion(Body, kw_only=True):
    prompt: str | list[int]
    add_special_tokens: bool | None = None
    echo: Literal[False] | None = None  # may want probabilities of the prompt


class _Sampling(msgspec.Struct):
    prompt_logprobs: None = None


class _Generation(Body, kw_only=True):
    token_ids: list[int]
    sampling_params: _Sampling | None = None


Talk: TypeAlias = Chat | Messages | Responses
Parsed: TypeAlias = Talk | _Completion | _Generation

_APART: dict[type[Talk], str] = {Messages: "messages", Responses: "responses"}
_FORMS: dict[
    str,
    msgspec.json.Decoder[Chat]
    | msgspec.json.Decoder[Messages]
    | msgspec.json.Decoder[Responses]
    | msgspec.json.Decoder[_Completion]
    | msgspec.json.Decoder[_Generation],
] = {
    "/v1/chat/completions": msgspec.json.Decoder(Chat),
    "/v1/messages": msgspec.json.Decoder(Messages),
    "/v1/responses": msgspec.json.Decoder(Responses),
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
class Trust:
    """Whether the tokens of prompts of one form are to be relied on.

    Attributes:
        trouble: Why not, None if they are.
        checked: Requests whose tokens the pod has counted too.
        miscounted: Of these, those where it counted others.
    """

    trouble: str | None = None
    checked: int = 0
    miscounted: int = 0

    @property
    def worn(self) -> bool:
        """Whether too many were miscounted."""
        many = self.miscounted > _MOST_MISCOUNTED
        return many and self.miscounted > _MISCOUNTED_SHARE * self.checked


@dataclass(slots=True)
class ModelTokens:
    """A model's tokenizer, and what has been tokenised and hashed with it.

    Attributes:
        name: The model's name.
        tokenizer: Its tokenizer.
        lora: The adapter's name, None for a base model.
        trust: What is thought of the prompts of each form.
        parts: Whether a template is handed contents as lists, by whether there are tools; where it
            is not known, both must come out alike.
    """

    name: str
    tokenizer: Tokenizer
    store: PrefixStore
    lora: str | None = None
    trust: dict[str, Trust] = field(default_factory=dict)
    parts: dict[bool, bool] = field(default_factory=dict)
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

    @property
    def trouble(self) -> str | None:
        """Why none of its tokens are to be relied on, None if some are."""
        return self.of("").trouble

    def of(self, form: str) -> Trust:
        """Return what is thought of prompts of a form."""
        return self.trust.setdefault(form, Trust())

    def count(self, ours: int, theirs: int, form: str = "") -> bool:
        """Compare our count of a prompt with the pod's; return whether they agree."""
        trust = self.of(form)
        trust.checked += 1
        if ours == theirs:
            return True
        trust.miscounted += 1
        if trust.worn and trust.trouble is None:
            self.distrust(
                f"the pod counted {theirs} prompt tokens where ours are {ours}: it has another "
                "tokenizer or chat template",
                form,
            )
        return False

    def met(self, probe: bytes, theirs: Sequence[int]) -> None:
        """Learn from what a pod makes of a chat: how contents are handed over, or that it differs.

        Args:
            probe: The body of the chat.
            theirs: Its token ids there.
        """
        chat = msgspec.json.decode(probe, type=Chat).conversation(self.tokenizer)
        if chat is None:
            return
        tools, made = chat.tools, dict[bool, list[int]]()
        for parts in (False, True):
            with contextlib.suppress(InputError):
                made[parts] = self.tokenizer.encode(_render(self.tokenizer, chat, tools, parts))
        fits = [parts for parts, ids in made.items() if ids == list(theirs)]
        if len(fits) == 1:
            self.parts[tools is not None] = fits[0]
        elif not fits:
            self.distrust("the pod makes other tokens of a probe", "tools" if tools else "parts")

    def distrust(self, why: str, form: str = "") -> None:
        """Rely on the tokens of prompts of a form no more; on none, if it is the plain one."""
        self.of(form).trouble = why
        which = f"{self.name} ({FORMS[form]})" if form else self.name
        logger.warning("%s is routed by estimate from now on: %s", which, why)


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

    def parse(self, path: str, body: bytes) -> Parsed | None:
        """Return what a body says; None if its tokens cannot be told for certain."""
        form = _FORMS.get(path)
        if form is None or len(body) > _MOST_BYTES:
            return None
        try:
            parsed = form.decode(body)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return None
        known = self._model(parsed.model)
        return None if known is None or known.trouble is not None else parsed

    def lay_out(self, body: Parsed) -> Reading | None:
        """Return a prompt laid out; None if the model's template refuses it."""
        model = self._model(body.model)
        if model is None:
            return None
        try:
            return _lay_out(model, body)
        except (ValueError, InputError, OverflowError, RecursionError):
            return None

    def _model(self, name: str) -> ModelTokens | None:
        """Return a model; the only one there is, if none is named."""
        if not name and len(self.models) == 1:
            return next(iter(self.models.values()))
        return self.models.get(name)


def _lay_out(model: ModelTokens, body: Parsed) -> Reading | None:
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
    if isinstance(body, Chat | Messages | Responses):
        found = _laid_out_chat(model, body)
        if found is None:
            return None
        form, text = found
        return Reading(prompt, model, model.store.lookup(text), (), keys, form=form)
    if isinstance(body, _Generation):
        return Reading(prompt, model, None, array("I", body.token_ids), keys)
    if isinstance(body.prompt, str):
        special = body.add_special_tokens is not False
        if special:
            model.around_text()
        lookup = model.store.lookup(body.prompt)
        return Reading(prompt, model, lookup, (), keys, is_text=special)
    return Reading(prompt, model, None, array("I", body.prompt), keys)


def _laid_out_chat(model: ModelTokens, body: Talk) -> tuple[str, str] | None:
    """Return the form and the text of a conversation; None: they are not known."""
    if body.length > _MOST_MESSAGES or len(memoryview(body.tools)) > _MOST_OF_TOOLS:
        return None
    said = body.conversation(model.tokenizer)
    if said is None or not said.sound:
        return None
    calls = [call for message in said.messages for call in message.tool_calls or ()]
    arguments = sum(len(call.function.arguments) for call in calls)
    if len(said.tools or ()) + len(calls) > _MOST_MESSAGES or arguments > _MOST_OF_TOOLS:
        return None
    as_chat = _form(said)
    form = as_chat if isinstance(body, Chat) else _APART[type(body)]
    if any(model.of(one).trouble is not None for one in (as_chat, form)):
        return None
    text = _chat_text(model, said)
    return None if text is None else (form, text)


def _form(said: Conversation) -> str:
    """Return the form of a chat, one of `FORMS`."""
    if not said.plain:
        return "tools"
    return "" if all(isinstance(message.content, str) for message in said.messages) else "parts"


def _chat_text(model: ModelTokens, said: Conversation) -> str | None:
    """Return a chat's text; None if it depends on what is not known here.

    A server hands a template that may loop over parts a list of them, even where the client sent a
    text. Unless a pod has shown whether it takes a template for such a one, both must come out
    alike. So must a chat with tools that may be left out, and one without.
    """
    found = None
    for tools in [said.tools] if said.certain else [said.tools, None]:
        known = model.parts.get(tools is not None)
        reads = model.tokenizer.template(tools=tools is not None).reads_parts
        both = (False, True) if reads else (False,)
        for parts in both if known is None else (known,):
            text = _render(model.tokenizer, said, tools, parts)
            if found is not None and found != text:
                return None
            found = text
    return found


def _render(
    tokenizer: Tokenizer,
    said: Conversation,
    tools: Sequence[Mapping[str, object]] | None,
    parts: bool,
) -> str:
    """Return a chat's text with these tools, contents handed over as lists or not.

    Raises:
        InputError: The template refuses it.
    """
    template = tokenizer.template(tools=tools is not None)
    return template.render(
        handed_over(said.messages, parts=parts, developers=template.knows_developers),
        add_generation_prompt=said.answered,
        tools=tools,
        arguments=said.arguments,
    )


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
