"""Chance as an argument: one seed in, independent stable streams out.

`hash()` differs from process to process and a shared generator differs from order to order, so
neither is used. A stream is named by what it is for, and its seed is derived by SHA-256 from the
root seed and that name: the same on every machine, in every process, on any number of workers.
"""

from __future__ import annotations

import hashlib
import random


def derive(seed: int, *labels: str | int) -> int:
    """Return a 64-bit seed for the stream named by `labels` under the root `seed`."""
    name = "\x1f".join([str(seed), *map(str, labels)])
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")


def rng(seed: int, *labels: str | int) -> random.Random:
    """Return a generator of its own for the stream named by `labels`."""
    return random.Random(derive(seed, *labels))  # noqa: S311 - reproducible, not secret
