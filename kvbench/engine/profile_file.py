"""Profiles as files: what `kvbench calibrate` writes, and what any `--profile` takes.

A file is YAML with the fields of `Profile`; `time` holds those of `StepTime`, all in seconds. Below
`measured` stands, for people, what they come from; nothing reads it. Unknown keys are errors.
"""

from __future__ import annotations

import difflib
import math
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from kvbench.engine.profiles import NAMES, Profile, profile
from kvbench.engine.timing import StepTime
from kvbench.errors import InputError
from kvbench.units import parse_seconds
from kvbench.workload.yaml_file import YamlFile, read_yaml

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_CONSTANTS = tuple(field.name for field in fields(StepTime))
_OUTSIDE = ("request_s", "request_token_s")
_KEYS = ("name", "time", *_OUTSIDE, "kv_bytes_per_token", "kv_tokens", "measured")


def load_profile(name_or_path: str) -> Profile:
    """Return a profile by its name, or from a file.

    Args:
        name_or_path: One of `NAMES`, or a YAML file: a path that has a folder or ends in .yaml.

    Raises:
        InputError: There is no such profile, or something in the file is not as it must be.
    """
    path = Path(name_or_path)
    if name_or_path in NAMES or (
        path.name == name_or_path and path.suffix not in {".yaml", ".yml"}
    ):
        return profile(name_or_path)
    file = read_yaml(path)
    top = _mapping(file, (), _KEYS)
    time = _mapping(file, ("time",), _CONSTANTS)
    seconds = [_seconds(file, ("time", name), time.get(name)) for name in _CONSTANTS]
    return Profile(
        name=str(top.get("name", path.stem)),
        time=StepTime(*seconds),
        **{name: _seconds(file, (name,), top.get(name, 0.0)) for name in _OUTSIDE},
        kv_bytes_per_token=_whole(file, "kv_bytes_per_token", top, least=0),
        kv_tokens=_whole(file, "kv_tokens", top, least=1),
    )


def profile_text(profile: Profile, measured: Mapping[str, object]) -> str:
    """Return a profile as the text of a file, with what it was measured from."""
    content = {
        "name": profile.name,
        "time": {name: _round(getattr(profile.time, name)) for name in _CONSTANTS},
        **{name: _round(getattr(profile, name)) for name in _OUTSIDE},
        "kv_bytes_per_token": profile.kv_bytes_per_token,
        "kv_tokens": profile.kv_tokens,
        "measured": dict(measured),
    }
    head = (
        "# A kvbench profile: how long the steps of a pod take, in seconds. For --profile FILE.\n"
    )
    return head + yaml.safe_dump(content, sort_keys=False, allow_unicode=True)


def _round(seconds: float) -> float:
    """Return four significant digits: no fit knows more."""
    return float(f"{seconds:.4g}")


def _mapping(file: YamlFile, path: Sequence[str], known: Sequence[str]) -> Mapping[object, object]:
    """Return the keys and values at `path`, all of them known."""
    value: object = file.content
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
    name = ".".join(path)
    if not isinstance(value, dict):
        lead = f"{name}: " if name else ""
        raise InputError(
            f"{lead}expected keys and values, got {'nothing' if value is None else repr(value)}",
            where=file.where(path),
            hint=f"known: {', '.join(known)}",
        )
    for key in value:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, 1)
            raise InputError(
                f"{'.'.join([*path, str(key)])}: unknown key",
                where=file.where([*path, str(key)]),
                hint=f'did you mean "{near[0]}"?' if near else f"known: {', '.join(known)}",
            )
    return value


def _seconds(file: YamlFile, path: Sequence[str], value: object) -> float:
    """Return seconds, 0 or more: a number, or a duration such as "5.2ms"."""
    name = ".".join(path)
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        try:
            seconds = parse_seconds(value)
        except ValueError as error:
            raise InputError(f"{name}: {error}", where=file.where(path)) from None
        if 0 <= seconds < math.inf:
            return seconds
    got = "nothing" if value is None else repr(value)
    raise InputError(f"{name}: expected 0 or more seconds, got {got}", where=file.where(path))


def _whole(file: YamlFile, key: str, top: Mapping[object, object], *, least: int) -> int:
    """Return a whole number of at least `least`."""
    value = top.get(key)
    if isinstance(value, int) and not isinstance(value, bool) and value >= least:
        return value
    got = "nothing" if value is None else repr(value)
    raise InputError(
        f"{key}: expected a whole number of at least {least}, got {got}", where=file.where([key])
    )
