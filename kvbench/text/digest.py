"""Names for what came before: digests of 128 bits, of which nobody outside can make two the same.

Whoever is known by a digest alone is taken for who has the same. XXH3 is fast, not safe: whoever
knows its seed can make texts that share a digest, and have one client's prompt read as another's.
So the seed is a secret of this process.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final

from xxhash import xxh3_128_intdigest

if TYPE_CHECKING:
    from typing_extensions import Buffer

SECRET: Final = secrets.randbits(64)
"""What the first digest in a row of them begins from."""

_SEED: Final = 0xFFFF_FFFF_FFFF_FFFF


def digest(data: Buffer, before: int = SECRET) -> int:
    """Return the name of bytes that stand behind those named `before`."""
    return int(xxh3_128_intdigest(data, before & _SEED))
