"""docker-compose.yml and what belongs to it, read without Docker."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
_VARIABLE = re.compile(r"\$\{(\w+):-([^}]*)\}")


def read(path: str) -> str:
    """Return a file of the checkout."""
    return (ROOT / path).read_text()


def filled(value: object, given: dict[str, str]) -> object:
    """Put variables, or else their defaults, into all strings, as Compose does."""
    if isinstance(value, dict):
        return {key: filled(item, given) for key, item in value.items()}
    if isinstance(value, list):
        return [filled(item, given) for item in value]
    if isinstance(value, str):
        return _VARIABLE.sub(lambda m: given.get(m[1]) or m[2], value).replace("$$", "$")
    return value


def composed(**given: str) -> dict:
    """Return the Compose file with these variables set."""
    return filled(yaml.safe_load(read("docker-compose.yml")), given)


def variables() -> dict[str, set[str]]:
    """Return every variable of the Compose file with the defaults it has there."""
    found: dict[str, set[str]] = {}
    for name, default in _VARIABLE.findall(read("docker-compose.yml")):
        found.setdefault(name, set()).add(default)
    return found
