"""Small tokenizers of the kinds that models come with, trained on a page of text."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from kvbench.text.chat_template import ChatTemplate
from kvbench.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable

MARKED = (
    "{% for m in messages %}<|{{m.role}}|>{{m.content}}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""Content directly between special tokens."""

HEADED = (
    "{{ bos_token }}{% for m in messages %}"
    "<|user|>{{ m.role }}<|end|>\n\n{{ m.content | trim }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|user|>assistant<|end|>\n\n{% endif %}"
)
"""Llama 3's form: a header, an empty line, trimmed content."""

BRACKETED = (
    "{% for m in messages %}{% if m.role == 'assistant' %} {{ m.content | trim }}<|end|>"
    "{% else %}[INST] {{ m.content | trim }} [/INST]{% endif %}{% endfor %}"
)
"""Llama 2's form: content between spaces, inside ordinary text."""

SPECIAL = ["<|unk|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]

_WORDS = """
river garden window letter bridge harbour teacher number table question answer summer winter water
stone bread light music paper street moon doctor children weather mountain library train morning
evening kitchen story island : sees finds keeps opens writes builds carries paints follows brings
counts leaves"""
_NOUNS, _VERBS = (part.split() for part in _WORDS.split(":"))
_TEXT = [
    f"{first} {verb} {second} and {third}\n{verb} the {first}, the\n{third}. [INST] a [/INST] user"
    for i, first in enumerate(_NOUNS)
    for j, verb in enumerate(_VERBS)
    for second in [_NOUNS[(i + j) % len(_NOUNS)]]
    for third in [_NOUNS[(3 * i + j) % len(_NOUNS)]]
]


def _trained(backend: tokenizers.Tokenizer, trainer: object) -> str:
    """Train on the page of text; return the content of a `tokenizer.json`."""
    backend.train_from_iterator(_TEXT, trainer)
    return backend.to_str()


def _ready(content: str, template: str) -> Tokenizer:
    """Return a tokenizer with a chat template."""
    backend = tokenizers.Tokenizer.from_str(content)
    chat = ChatTemplate(template, where="template", special_tokens={"bos_token": "<|system|>"})
    return Tokenizer(backend, path=Path("fake"), eos_token="<|end|>", template=chat)


@cache
def _byte_level() -> str:
    """Train the model of `byte_level`."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    return _trained(backend, trainer)


def byte_level(template: str = HEADED) -> Tokenizer:
    """Return a byte-level BPE: GPT-2, Llama 3, Qwen."""
    return _ready(_byte_level(), template)


@cache
def _prepended() -> str:
    """Train the model of `prepended`."""
    backend = tokenizers.Tokenizer(models.BPE(unk_token="<|unk|>"))
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    backend.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    backend.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=SPECIAL, show_progress=False)
    return _trained(backend, trainer)


def prepended(template: str = BRACKETED) -> Tokenizer:
    """Return a BPE whose normalizer puts a metaspace before every text: Llama 2, Mistral."""
    return _ready(_prepended(), template)


@cache
def _unigram() -> str:
    """Train the model of `unigram`."""
    backend = tokenizers.Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=200, special_tokens=SPECIAL, unk_token="<|unk|>", show_progress=False
    )
    return _trained(backend, trainer)


def unigram(template: str = MARKED) -> Tokenizer:
    """Return a Unigram model with metaspaces: T5, XLM-R, Gemma."""
    return _ready(_unigram(), template)


@cache
def _word_piece() -> str:
    """Train the model of `word_piece`."""
    backend = tokenizers.Tokenizer(models.WordPiece(unk_token="<|unk|>"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=SPECIAL, show_progress=False)
    return _trained(backend, trainer)


def word_piece(template: str = MARKED) -> Tokenizer:
    """Return a WordPiece model, which forgets spaces: BERT."""
    return _ready(_word_piece(), template)


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "byte-level BPE": byte_level,
    "BPE with a prepended metaspace": prepended,
    "Unigram with metaspaces": unigram,
    "WordPiece": word_piece,
    "shipped": Tokenizer.load,
}
"""By name: how to make one."""
