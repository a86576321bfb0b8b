"""The script that builds the shipped tokenizer gives the same bytes for the same text."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from kvbench.text.tokenizer import SHIPPED

SCRIPT = Path(__file__).parent.parent.parent / "scripts" / "build_tokenizer.py"


def load_script():
    """Import the script from its file."""
    spec = importlib.util.spec_from_file_location("build_tokenizer", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_same_text_gives_the_same_tokenizer():
    """Twice, byte for byte, special tokens first."""
    script = load_script()
    one, two = (script.train([script.SENTENCES], vocabulary=400) for _ in range(2))
    assert one.to_str() == two.to_str()
    assert [one.id_to_token(i) for i in range(4)] == list(script.SPECIAL_TOKENS)


def test_the_shipped_template_is_the_scripts():
    """The files in the package come from the script."""
    script = load_script()
    assert (SHIPPED / "chat_template.jinja").read_text() == script.TEMPLATE
