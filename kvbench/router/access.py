"""Who may ask, and how much: API keys and their limits. Pure; time is an argument.

    keys:
      - name: team-a            # what logs and metrics call it
        key: sk-6dp2hTV0cQ      # or sha256: its digest, so that the file holds no secret
        in_flight: 8            # requests under way at once; no limit if absent
        per_minute: 600         # requests a minute, on average; no limit if absent

Rules:

- A key comes in `authorization: Bearer KEY`, or else in `x-api-key: KEY`. It is looked up by its
  SHA-256, compared in constant time: how long that takes says nothing about the keys there are.
- No key is ever in a log, an error, a metric or a repr; names are.
- `per_minute` is a bucket that holds a tenth of a minute's requests (at least one) and fills
  steadily: so short bursts pass, and a minute's worth at once does not.
- A request that is refused for one limit is not counted towards another.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from kvbench.errors import InputError
from kvbench.workload.yaml_file import read_yaml

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from kvbench.workload.yaml_file import YamlFile

Limit = Literal["in_flight", "per_minute"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_KEY = re.compile(r"[!-~]{8,512}")
_DIGEST = re.compile(r"[0-9a-fA-F]{64}")
_FIELDS = ("name", "key", "sha256", "in_flight", "per_minute")
_MOST_KEYS = 4096
_ROUNDING = 1e-9  # who waits as told is let in
_FORM = "see docs/router.md for the form"


@dataclass(frozen=True, slots=True)
class Grant:
    """One key, as its file has it.

    Attributes:
        name: What it is called.
        digest: SHA-256 of the key.
        in_flight: Requests under way at once; None is no limit.
        per_minute: Requests a minute; None is no limit.
    """

    name: str
    digest: bytes = field(repr=False)
    in_flight: int | None = None
    per_minute: float | None = None


class Holder:
    """What one key has under way, and may begin.

    Attributes:
        name: What the key is called.
        under_way: Its requests.
    """

    __slots__ = ("_at", "_grant", "_tokens", "name", "under_way")

    def __init__(self, grant: Grant) -> None:
        self.name = grant.name
        self.under_way = 0
        self._at = -math.inf
        self._tokens = 0.0
        self._grant = grant

    def regrant(self, grant: Grant) -> None:
        """Take other limits; what is under way stays counted."""
        self._grant = grant

    def enter(self, now: float) -> tuple[Limit, int] | None:
        """Count a request in, or return the limit that it would exceed and the seconds to wait."""
        most, rate = self._grant.in_flight, self._grant.per_minute
        if most is not None and self.under_way >= most:
            return "in_flight", 1
        if rate is not None:
            room = max(rate / 10, 1.0)
            filled = self._tokens + max(now - self._at, 0.0) * rate / 60
            self._tokens, self._at = min(filled, room), now
            if self._tokens < 1.0 - _ROUNDING:
                return "per_minute", max(math.ceil((1.0 - self._tokens) * 60 / rate), 1)
            self._tokens -= 1.0
        self.under_way += 1
        return None

    def leave(self) -> None:
        """Count a request out that was counted in."""
        assert self.under_way > 0
        self.under_way -= 1


class Access:
    """The holders of all keys."""

    def __init__(self, grants: Sequence[Grant]) -> None:
        self.holders: dict[str, Holder] = {}
        self._by_digest: dict[bytes, Grant] = {}
        self.grant(grants)

    def grant(self, grants: Sequence[Grant]) -> None:
        """Take these keys for those that there were; holders go by name."""
        holders = {}
        for one in grants:
            holder = holders[one.name] = self.holders.get(one.name) or Holder(one)
            holder.regrant(one)
        self.holders = holders
        self._by_digest = {one.digest: one for one in grants}

    def of(self, headers: Mapping[bytes, bytes]) -> Holder | None:
        """Return the holder of the key that a request carries, None if it carries none of ours.

        Args:
            headers: By name, in lower case.
        """
        key = headers.get(b"x-api-key", b"")
        bearer = headers.get(b"authorization", b"")
        if bearer[:7].lower() == b"bearer ":
            key = bearer[7:].strip()
        digest = hashlib.sha256(key).digest()
        found = self._by_digest.get(digest)  # whoever can steer a digest can break SHA-256
        if found is None or not hmac.compare_digest(found.digest, digest):
            return None
        return self.holders[found.name]


def read_keys(path: Path) -> list[Grant]:
    """Read a file of keys.

    Raises:
        InputError: It cannot be read, or something in it is not as it must be. No key is quoted.
    """
    file = read_yaml(path)
    content = file.content
    if not isinstance(content, dict) or list(content) != ["keys"]:
        raise InputError("expected keys: and a list", where=file.where(()), hint=_FORM)
    entries = content["keys"]
    if not isinstance(entries, list) or not 1 <= len(entries) <= _MOST_KEYS:
        raise InputError(
            f"keys: expected a list of 1 to {_MOST_KEYS:,} keys", where=file.where(("keys",))
        )
    grants = [_grant(file, number, entry) for number, entry in enumerate(entries)]
    names: set[str] = set()
    digests: set[bytes] = set()
    for number, one in enumerate(grants):
        for name, twice in (("name", one.name in names), ("key", one.digest in digests)):
            if twice:
                where = file.where(("keys", number, name))
                raise InputError(f"keys.{number}.{name}: given twice", where=where)
        names.add(one.name)
        digests.add(one.digest)
    return grants


def _grant(file: YamlFile, number: int, entry: object) -> Grant:
    """Return one key of a file."""
    if not isinstance(entry, dict):
        raise InputError(
            f"keys.{number}: expected {', '.join(_FIELDS)}", where=file.where(("keys", number))
        )

    def trouble(name: str, expected: str) -> InputError:
        where = file.where(("keys", number, name))
        return InputError(f"keys.{number}.{name}: expected {expected}", where=where, hint=_FORM)

    for name in entry:
        if name not in _FIELDS:
            raise trouble(name, f"one of {', '.join(_FIELDS)}")
    name, in_flight, per_minute = map(entry.get, ("name", "in_flight", "per_minute"))
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise trouble("name", "1 to 64 letters, digits, dots, dashes or underscores")
    if in_flight is not None and (type(in_flight) is not int or in_flight < 1):
        raise trouble("in_flight", "a whole number from 1 up")
    if per_minute is not None and not (
        type(per_minute) in {int, float} and 0 < per_minute < math.inf
    ):
        raise trouble("per_minute", "a number above 0")
    return Grant(name, _digest(entry, trouble), in_flight, per_minute)


def _digest(entry: dict[str, object], trouble: Callable[[str, str], InputError]) -> bytes:
    """Return the digest of a key, which is given as itself or as its digest."""
    key, sha256 = entry.get("key"), entry.get("sha256")
    if (key is None) == (sha256 is None):
        raise trouble("key", "either key or sha256")
    if sha256 is not None:
        if not (isinstance(sha256, str) and _DIGEST.fullmatch(sha256)):
            raise trouble("sha256", "64 hexadecimal digits (in quotes)")
        return bytes.fromhex(sha256)
    if not (isinstance(key, str) and _KEY.fullmatch(key)):
        raise trouble("key", "a text of 8 to 512 visible ASCII characters (in quotes if digits)")
    return hashlib.sha256(key.encode()).digest()
