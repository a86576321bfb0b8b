"""Build the tokenizer that kvbench ships: a byte-level BPE of 4,096 tokens, and its template.

    python scripts/build_tokenizer.py [DIRECTORY]

It learns from text that may be used freely and is on every machine: the licence of this repository
(Apache-2.0), the docstrings of Python's standard library (PSF licence), and the sentences below,
which are ours. Each word that occurs often is also shown at the beginning of a line, so that it
becomes a token with a space before it and one without. Same input, same bytes; the docstrings
differ a little from one Python to the next, and the shipped files were made with Python 3.11.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT = Path(__file__).parent.parent
VOCABULARY = 4096
SPECIAL_TOKENS = ("<|end|>", "<|system|>", "<|user|>", "<|assistant|>")
TEMPLATE = (
    "{% for m in messages %}<|{{m.role}}|>{{m.content}}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
MODULES = """
    argparse ast asyncio base64 bisect calendar cmd codecs collections concurrent.futures
    configparser contextlib copy csv ctypes datetime decimal difflib dis email enum fractions
    functools gettext glob gzip hashlib heapq html http.client http.cookies imaplib inspect io
    ipaddress itertools json locale logging lzma mailbox math mimetypes multiprocessing numbers
    operator os pathlib pickle platform plistlib pprint queue random re sched secrets selectors
    shelve shlex shutil signal smtplib socket socketserver sqlite3 ssl statistics string struct
    subprocess sys tarfile tempfile textwrap threading time timeit token tokenize traceback
    tracemalloc types typing unittest urllib.parse urllib.request uuid warnings wave weakref
    wsgiref.headers xml.dom.minidom xml.etree.ElementTree xmlrpc.client zipfile zoneinfo
""".split()  # noqa: SIM905 - a column of quotes and commas would be harder to read
SENTENCES = """
The harbour was quiet that morning, and the boats lay side by side under a pale and windless sky.
A gardener knows that patience is a tool, like water, like light, like the small knife in her hand.
When the train came over the bridge, everyone at the window looked at the river and said nothing.
He asked the same question twice, and the second answer came before he had finished asking it.
Good bread needs flour, water, salt and time; most of all it needs somebody who remembers it.
The library keeps every book that somebody may want, and gives away what was asked for longest ago.
Our customer wants to change the address of an order that left the warehouse yesterday evening.
Please read the contract, list every date that it names, and explain which of them we could miss.
My daughter would like to know why the moon follows our car, and why it never gets tired.
The report says that sales went up in spring, down in summer, and nobody wrote down the reason.
In the mountains the weather changes quickly: take a coat, a map, and a friend who talks little.
Write a short letter to the neighbours about the noise, friendly in tone and clear in substance.
The function takes a list of numbers and returns the largest; an empty list is an error.
A queue grows where work arrives faster than it leaves, and no clever order of serving changes that.
Which city has the oldest university, which has the longest bridge, and which one smells of coffee?
The doctor wrote that sleep, bread, walking and good company cure more than her whole cabinet does.
They built the house from stone because stone was there, and its roof from wood, which is light.
Tomorrow the children play theatre, and the dog, who plays the wolf, has already forgotten his part.
""".strip()


def corpus() -> list[str]:
    """Return the texts to learn from, in a fixed order."""
    texts = [(ROOT / "LICENSE").read_text(encoding="utf-8"), *([SENTENCES] * 20)]
    for name in MODULES:
        module = import_module(name)
        texts.append(inspect.getdoc(module) or "")
        for _, member in sorted(vars(module).items()):
            if inspect.isclass(member) or inspect.isroutine(member):
                texts.append(inspect.getdoc(member) or "")
                if inspect.isclass(member):
                    texts += [inspect.getdoc(m) or "" for _, m in sorted(vars(member).items())]
    return texts + _word_lines(texts)


def _word_lines(texts: Iterable[str]) -> list[str]:
    """Return the words that occur often, at the beginning of a line and inside one."""
    counts = Counter(word for text in texts for word in re.findall(r"\b[a-z]{3,12}\b", text))
    common = sorted(counts, key=lambda word: (-counts[word], word))[:1300]
    return [f"{word}\n" * 400 + f" {word}" * 400 for word in common]


def train(texts: Iterable[str], vocabulary: int = VOCABULARY) -> Tokenizer:
    """Return a byte-level BPE of `vocabulary` tokens, special tokens first, learnt from `texts`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=vocabulary,
            special_tokens=[AddedToken(token, special=True) for token in SPECIAL_TOKENS],
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        ),
    )
    return tokenizer


def main(directory: Path) -> None:
    """Write the three files of the tokenizer into `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = train(corpus())
    config = {"eos_token": SPECIAL_TOKENS[0], "model_max_length": 131072}
    (directory / "tokenizer.json").write_text(tokenizer.to_str(pretty=False) + "\n", "utf-8")
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    (directory / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "kvbench" / "text" / "data")
