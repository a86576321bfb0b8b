"""The tokenizer that a target's plan is made with: lengths and ceilings are to be its own.

A pod that serves a local directory names it; what is no directory here, such as a name on a hub, is
not looked for anywhere.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from kvbench.errors import InputError
from kvbench.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pathlib import Path

    from kvbench.stack.target import Target


def tokenizer_for(target: Target, given: Path | None) -> Tokenizer:
    """Return the tokenizer to plan with: the one given, the target's own, or kvbench's.

    Raises:
        InputError: The one given cannot be read.
    """
    if given is None and target.root:
        with suppress(InputError):  # a name on a hub, or a directory of another machine
            return Tokenizer.load(target.root)
    return Tokenizer.load(given)
