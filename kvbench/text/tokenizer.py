"""The tokenizer: text to token ids and back, alike to what a server with the same files does.

It wraps `tokenizers` and owns three things that this library leaves open: where the files are and
what is wrong with them, the chat template that stands beside them, and text that comes token by
token. Truncation and padding that a `tokenizer.json` may carry are switched off: a prompt is never
shortened silently.

A small byte-level BPE of our own is shipped (`data/`, built by `scripts/build_tokenizer.py`), so
that everything works without a model on disk.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import tokenizers
import xxhash
from tokenizers.decoders import DecodeStream

from kvbench import clock
from kvbench.errors import InputError
from kvbench.text.chat_template import ChatTemplate
from kvbench.text.words import PlainWords, find_plain_words

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime

    from tokenizers.models import Model

SHIPPED = Path(__file__).parent / "data"
"""Directory of the tokenizer that comes with kvbench."""


@dataclass(frozen=True, slots=True)
class AddedToken:
    """A token that is looked for in a text before anything else is done with it.

    Attributes:
        id: Its id.
        text: Its letters.
        normalized: Whether it is looked for in the normalized text, not in the raw one.
        conditional: Whether it is found, or how much space it takes, depends on its neighbours.
    """

    id: int
    text: str
    normalized: bool
    conditional: bool


_PLAIN_WORDS: dict[int, PlainWords] = {}  # by digest of the tokenizer
_AT_ONCE = 512  # texts: the library's encodings take a kilobyte each, and more


class StreamDecoder:
    """Turns token ids that come one by one into text, as vLLM's detokenizer does.

    A token whose bytes end inside a character yields "", and the character comes with the token
    that completes it. Bytes that can no longer become a character come out as U+FFFD, together
    with the text after them; what is still incomplete when the stream ends never comes out.
    """

    def __init__(self, backend: tokenizers.Tokenizer, prompt_ids: Sequence[int]) -> None:
        self._backend = backend
        self._stream = DecodeStream(ids=list(prompt_ids), skip_special_tokens=True)

    def push(self, token_id: int) -> str:
        """Return the text that `token_id` completes; may be empty."""
        try:
            text: str | None = self._stream.step(self._backend, token_id)
        except Exception:  # noqa: BLE001 - the library raises this very class
            # Text that changes in hindsight invalidates its state: start afresh, as vLLM does.
            self._stream = DecodeStream(skip_special_tokens=True)
            text = self._stream.step(self._backend, token_id)
        return text or ""


class Tokenizer:
    """A tokenizer with its chat template. Make one with `Tokenizer.load`.

    Attributes:
        name: Name of its directory; "kvbench" for the shipped one.
        path: Its directory.
        vocab_size: Number of tokens, added ones included.
        eos_token_id: Id of the end-of-text token, None if its configuration names none.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        path: Path,
        eos_token: str | None = None,
        template: ChatTemplate | None = None,
        tool_template: ChatTemplate | None = None,
    ) -> None:
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._template = template
        self._tool_template = tool_template or template
        self.path = path
        self.name = "kvbench" if path == SHIPPED else path.resolve().name
        self.vocab_size: int = backend.get_vocab_size(with_added_tokens=True)
        self.eos_token_id: int | None = backend.token_to_id(eos_token) if eos_token else None

    @classmethod
    def load(
        cls, path: str | Path | None = None, *, now: Callable[[], datetime] = clock.utc
    ) -> Tokenizer:
        """Read a tokenizer from disk.

        Args:
            path: A directory with `tokenizer.json` and, optionally, `tokenizer_config.json` and
                `chat_template.jinja`; or such a `tokenizer.json`; None is the shipped one.
            now: What a chat template that prints the date asks for it.

        Raises:
            InputError: A file is missing or broken.
        """
        given = Path(path) if path is not None else SHIPPED
        file = given / "tokenizer.json" if given.is_dir() else given
        backend = _read_backend(file)
        config_file = file.parent / "tokenizer_config.json"
        config = _read_config(config_file)
        special = {k: t for k, v in config.items() if k.endswith("_token") and (t := _content(v))}
        made = {
            name: ChatTemplate(text, where=where, special_tokens=special, now=now)
            for name, (where, text) in _read_templates(file.parent, config).items()
        }
        return cls(
            backend,
            path=file.parent,
            eos_token=special.get("eos_token"),
            template=made.get("default"),
            tool_template=made.get("tool_use"),
        )

    @property
    def has_chat_template(self) -> bool:
        """Whether messages can be rendered."""
        return self._template is not None

    def template(self, *, tools: bool = False) -> ChatTemplate:
        """Return the chat template, or the one for chats with tools, which few models have apart.

        Raises:
            InputError: There is none.
        """
        template = self._tool_template if tools else self._template
        if template is None:
            raise InputError(
                "this tokenizer has no chat template",
                where=str(self.path),
                hint="put the model's chat_template.jinja there, or use `api: completions`",
            )
        return template

    @property
    def system_first(self) -> bool:
        """Whether one of its templates wants all that the system says at the beginning."""
        return any(self.template(tools=tools).system_first for tools in (False, True))

    @cached_property
    def longest_token(self) -> int:
        """Characters of the longest token, as the vocabulary spells it: no token is more text."""
        return max(map(len, self._backend.get_vocab(with_added_tokens=True)))

    @cached_property
    def plain_words(self) -> PlainWords:
        """Words that are one token each wherever they stand (see `kvbench.text.words`).

        Looking for them takes a tenth of a second or more: once for each vocabulary, not each time
        that it is loaded.
        """
        same = xxhash.xxh3_128_intdigest(self._backend.to_str().encode())
        if same not in _PLAIN_WORDS:
            _PLAIN_WORDS[same] = find_plain_words(self)
        return _PLAIN_WORDS[same]

    @property
    def plain_token_ids(self) -> Sequence[int]:
        """Ids of the plain words, each with the space before it: any sequence decodes to words."""
        return self.plain_words.spaced_ids

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Return the token ids of `text`; special tokens in the text are recognised.

        Releases the GIL while it works.
        """
        return self.encode_batch([text], add_special_tokens=add_special_tokens)[0]

    def encode_batch(
        self, texts: Sequence[str], *, add_special_tokens: bool = False
    ) -> list[list[int]]:
        """Return the token ids of each of `texts`, each encoded for itself."""
        ids: list[list[int]] = []
        for first in range(0, len(texts), _AT_ONCE):
            some = list(texts[first : first + _AT_ONCE])
            encodings = self._backend.encode_batch_fast(some, add_special_tokens=add_special_tokens)
            ids += [encoding.ids for encoding in encodings]
        return ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of `ids`; an id outside the vocabulary is passed over."""
        text: str = self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text

    def parts(self) -> tuple[object, object, Model]:
        """Return the normalizer and the pre-tokenizer, as JSON says them, and the model."""
        backend = self._backend
        normalizer, cutter = (
            None if part is None else json.loads(part.__getstate__())
            for part in (backend.normalizer, backend.pre_tokenizer)
        )
        return normalizer, cutter, backend.model

    def added_tokens(self) -> list[AddedToken]:
        """Return the tokens at which a text is cut before it is encoded, special or not."""
        found = self._backend.get_added_tokens_decoder()
        return [
            AddedToken(
                number,
                token.content,
                token.normalized,
                token.single_word or token.lstrip or token.rstrip,
            )
            for number, token in found.items()
        ]

    def token(self, token_id: int) -> str | None:
        """Return the vocabulary's own spelling of a token ("Ġword"), None if there is none."""
        spelling: str | None = self._backend.id_to_token(token_id)
        return spelling

    def render_chat(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, object]] | None = None,
    ) -> str:
        """Return the prompt's text for `messages`, and `tools`.

        Raises:
            InputError: There is no chat template, or it refuses the messages.
        """
        template = self.template(tools=tools is not None)
        return template.render(messages, add_generation_prompt=add_generation_prompt, tools=tools)

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, object]] | None = None,
    ) -> list[int]:
        """Return the prompt's token ids for `messages`, as a server's chat endpoint computes them.

        Raises:
            InputError: There is no chat template, or it refuses the messages.
        """
        return self.encode(
            self.render_chat(messages, add_generation_prompt=add_generation_prompt, tools=tools)
        )

    def stream_decoder(self, prompt_ids: Sequence[int] = ()) -> StreamDecoder:
        """Return a decoder for one answer; `prompt_ids` are what the answer continues."""
        return StreamDecoder(self._backend, prompt_ids)


def _read_backend(file: Path) -> tokenizers.Tokenizer:
    """Read `tokenizer.json`."""
    if not file.is_file():
        raise InputError(
            "no such tokenizer",
            where=str(file),
            hint="give a directory that holds the model's tokenizer.json, or that file itself",
        )
    try:
        return tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises Exception itself
        raise InputError(
            f"not a tokenizer: {error}",
            where=str(file),
            hint="expected the tokenizer.json of the `tokenizers` library; is the download whole?",
        ) from error


def _read_config(file: Path) -> dict[str, object]:
    """Read `tokenizer_config.json`; an absent one is empty."""
    if not file.is_file():
        return {}
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"not JSON: {error}", where=str(file)) from error
    if not isinstance(config, dict):
        raise InputError("expected a JSON object", where=str(file))
    return config


def _content(token: object) -> str | None:
    """Return a special token's text: configurations hold a string, or an object with `content`."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _read_templates(directory: Path, config: Mapping[str, object]) -> dict[str, tuple[str, str]]:
    """Return where the chat templates stand, and their texts, by name: "default", "tool_use".

    Files go before the configuration; there, several have names, and one alone has none.
    """
    named: object = config.get("chat_template")
    if isinstance(named, list):
        named = {one.get("name"): one.get("template") for one in named if isinstance(one, dict)}
    elif not isinstance(named, dict):
        named = {"default": named}
    where = str(directory / "tokenizer_config.json")
    found = {str(name): (where, text) for name, text in named.items() if isinstance(text, str)}
    file = directory / "chat_template.jinja"
    beside = directory / "additional_chat_templates" / "tool_use.jinja"
    if file.is_file():
        found = {"default": _read_text(file)}
    if beside.is_file():
        found["tool_use"] = _read_text(beside)
    return found


def _read_text(file: Path) -> tuple[str, str]:
    """Return where a file stands, and what is in it."""
    try:
        return str(file), file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8: {error}", where=str(file)) from error
