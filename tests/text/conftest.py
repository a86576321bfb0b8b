"""Tokenizers of every kind, made once."""

from __future__ import annotations

import fakes_text
import pytest

from kvbench.text.tokenizer import Tokenizer


@pytest.fixture(scope="session", params=fakes_text.KINDS)
def tokenizer(request):
    """Every kind of tokenizer, one after the other."""
    return fakes_text.KINDS[request.param]()


@pytest.fixture(scope="session")
def shipped():
    """Our own tokenizer."""
    return Tokenizer.load()
