"""Well-known models, and where else a model's shape is read from.

`data/models.json` holds, for each model, those keys of its public `config.json` (on Hugging Face,
under `_name_or_path`) that decide sizes, as they stand there; a multimodal model's are those of its
`text_config`. They are read by the same parser as a file of one's own. The tests check each model's
parameters, counted from these keys, against the published count.
"""

from __future__ import annotations

import difflib
import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from kvbench.engine.shape import Shape, parse_shape
from kvbench.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

_FILE = Path(__file__).parent / "data" / "models.json"
_MOST_BYTES = 16 * 2**20


@cache
def known_models() -> Mapping[str, Shape]:
    """Return the shapes of the models that come with kvbench, by short name."""
    return {
        name: parse_shape(config, name=name, where=f"{_FILE}: {name}")
        for name, config in _read(_FILE).items()
        if isinstance(config, dict)
    }


@cache
def _hub_names() -> Mapping[str, str]:
    """Return short names by the name on Hugging Face, in small letters."""
    return {
        str(config["_name_or_path"]).lower(): name
        for name, config in _read(_FILE).items()
        if isinstance(config, dict)
    }


def load_shape(model: str) -> Shape:
    """Return the shape of a model.

    Args:
        model: A known model's name, short or as on Hugging Face; a `config.json`; or a directory
            that holds one.

    Raises:
        InputError: It is none of these, or its configuration is refused.
    """
    name = model.lower()
    name = _hub_names().get(name, name)
    if name in known_models():
        return known_models()[name]
    path = Path(model)
    if path.is_dir():
        path /= "config.json"
    if path.is_file():
        return parse_shape(_read(path), name=model, where=str(path))
    if path.suffix == ".json" or path.name != model:
        raise InputError("no such file", where=str(path), hint="expected a model's config.json")
    near = difflib.get_close_matches(name, known_models(), 3, 0.3)
    raise InputError(
        f"model: expected a known model, a config.json or its directory, got {model!r}",
        hint=f"did you mean {' or '.join(near)}?" if near else "`kvbench size --list` names them",
    )


def _read(path: Path) -> dict[str, object]:
    """Return the object in a JSON file.

    Raises:
        InputError: It cannot be read, or holds something else.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(_MOST_BYTES + 1)
        content = json.loads(raw) if len(raw) <= _MOST_BYTES else None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from error
    except json.JSONDecodeError as error:
        raise InputError(f"not JSON: {error.msg}", where=f"{path}:{error.lineno}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"not JSON: {error}", where=str(path)) from error
    if not isinstance(content, dict):
        raise InputError("expected a JSON object of at most 16 MiB", where=str(path))
    return content
