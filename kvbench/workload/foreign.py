"""Settings of other load generators, as workload files of ours.

**inference-perf**, `data.type: shared_prefix`: groups with a system prompt each, prompts within a
group, stages of rates. Both spellings are taken: `num_unique_system_prompts` and
`num_users_per_system_prompt`, or `num_groups` and `num_prompts_per_group`. All prompts are sent in
rounds, as they are there. With `enable_multi_turn_chat`, each prompt is a user who asks again and
again.

**production-stack**, the options of its multi-round benchmark: `--num-users 10 --num-rounds 5
--qps 0.5 --shared-system-prompt 1000 --user-history-prompt 2000 --answer-len 100 --time 60`. A user
asks every users/qps seconds; there it counts from question to question, here from answer to
question. Its question of some twenty words is taken as `QUESTION` tokens.

What has no counterpart is said in the notes.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, TypeAlias

import yaml

from kvbench.errors import InputError
from kvbench.workload.parse import load_workload
from kvbench.workload.yaml_file import read_yaml

if TYPE_CHECKING:
    from pathlib import Path

    from kvbench.workload.yaml_file import YamlFile

Content: TypeAlias = dict[str, object]

QUESTION = 20
"""Tokens of production-stack's fixed question, about."""

_ALIASES = {
    "num_groups": ("num_groups", "num_unique_system_prompts"),
    "num_prompts_per_group": ("num_prompts_per_group", "num_users_per_system_prompt"),
}

_OPTIONS = {
    "--num-users": "users", "--num-rounds": "rounds", "--qps": "qps",
    "--shared-system-prompt": "system", "--user-history-prompt": "history",
    "--answer-len": "answer", "--time": "time",
}  # fmt: skip
_IGNORED = {
    "--model", "--base-url", "--init-user-id", "--output", "--log-interval", "--sharegpt",
    "--request-with-user-id", "--enable-user-id", "--api-key", "--verbose",
}  # fmt: skip
_FLAGS = {"--request-with-user-id", "--sharegpt", "--verbose"}


def from_inference_perf(path: Path) -> tuple[Content, list[str]]:
    """Return the content of a workload file, and what people should know of it.

    Raises:
        InputError: The file is no such configuration.
    """
    file = read_yaml(path)
    data = _section(file, ("data",))
    if data.get("type") != "shared_prefix":
        raise InputError(
            f"data.type: expected shared_prefix, got {data.get('type')!r}",
            where=file.where(("data", "type")),
        )
    shared = _section(file, ("data", "shared_prefix"))
    numbers = {name: _whole(file, shared, spellings) for name, spellings in _ALIASES.items()} | {
        name: _whole(file, shared, (name,))
        for name in ("system_prompt_len", "question_len", "output_len")
    }
    notes = []
    steps, spacing = _stages(file)
    requests = sum(rate * seconds for rate, seconds in steps)
    groups, prompts = numbers["num_groups"], numbers["num_prompts_per_group"]
    question = {"name": "question", "count": prompts, "tokens": numbers["question_len"]}
    prefixes: list[Content] = [
        {"name": "group", "count": groups, "tokens": numbers["system_prompt_len"]}
    ]
    sessions: Content = {"answer_tokens": numbers["output_len"]}
    if shared.get("enable_multi_turn_chat"):
        turns = max(round(requests / (groups * prompts)), 1)
        sessions |= {"count": groups * prompts, "turns": turns, "user_tokens": question["tokens"]}
        steps = [(rate / turns, seconds) for rate, seconds in steps]
        notes.append(
            f"{groups * prompts} users with {turns} turns each begin at a {turns}th of the rates: "
            "a user's next turn follows on the answer, not on a clock"
        )
    else:
        prefixes.append(question)
        sessions["user_tokens"] = 0
    for level in prefixes:
        level["popularity"] = "even"
    if str(_section(file, ("api",), required=False).get("type", "completion")) == "chat":
        notes.append("sent to completions, where system prompt and question are one prompt")
    return {
        "name": "shared-prefix",
        "description": "From an inference-perf configuration with shared prefixes.",
        "api": "completions",
        "seed": shared.get("seed") if isinstance(shared.get("seed"), int) else 0,
        "prefixes": prefixes,
        "sessions": sessions,
        "arrival": {"ladder": {"spacing": spacing, "steps": [list(step) for step in steps]}},
    }, notes


def from_production_stack(text: str, where: str) -> tuple[Content, list[str]]:
    """Return the content of a workload file for the options of a multi-round benchmark.

    Raises:
        InputError: An option is missing, unknown or no number.
    """
    values, notes = _parsed_options(text, where)
    missing = [o for o in ("users", "rounds", "qps", "answer") if o not in values]
    if missing:
        option = next(name for name, value in _OPTIONS.items() if value == missing[0])
        raise InputError(f"{option}: missing", where=where)
    if min(values["users"], values["rounds"], values["qps"], values["answer"]) <= 0:
        raise InputError("expected users, rounds, qps and answer length above 0", where=where)
    users, rounds, qps = round(values["users"]), round(values["rounds"]), values["qps"]
    sessions = max(round(values["time"] * qps / rounds), 1) if "time" in values else users
    prefixes: list[Content] = []
    if values.get("system"):
        prefixes.append({"name": "system", "count": 1, "tokens": round(values["system"])})
    if values.get("history"):
        prefixes.append(
            {
                "name": "user",
                "count": sessions,
                "tokens": round(values["history"]),
                "popularity": "even",
            }
        )
        notes.append("a user's history stands behind the system prompt, in the same message")
    return {
        "name": "multi-round",
        "description": "From the options of production-stack's multi-round benchmark.",
        "api": "chat",
        "history": "answers",
        "prefixes": prefixes,
        "sessions": {
            "count": sessions,
            "turns": rounds,
            "user_tokens": QUESTION,
            "answer_tokens": round(values["answer"]),
            "think": users / qps,
        },
        "arrival": {"constant": {"rate": qps / rounds}},
    }, notes


def write_workload(path: Path, content: Content) -> None:
    """Write a workload file, and check that it is one.

    Raises:
        InputError: It cannot be written, or is no workload.
    """
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=100)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", where=str(path)) from error
    load_workload(path)


def _parsed_options(text: str, where: str) -> tuple[dict[str, float], list[str]]:
    """Return the numbers of a command line, by name."""
    try:
        words = shlex.split(text.replace("\\\n", " "), comments=True)
    except ValueError as error:
        raise InputError(f"not a command line: {error}", where=where) from error
    values: dict[str, float] = {}
    notes = []
    place = next((i for i, word in enumerate(words) if word.startswith("--")), len(words))
    while place < len(words):
        option, _, value = words[place].partition("=")
        if option not in _FLAGS and not value and place + 1 < len(words):
            place += 1
            value = words[place]
        place += 1
        if option in _IGNORED:
            notes.append(f"{option} has no counterpart in a workload")
        elif option not in _OPTIONS:
            raise InputError(
                f"expected an option of the multi-round benchmark, got {option!r}",
                where=where,
                hint=f"known: {', '.join(_OPTIONS)}",
            )
        else:
            try:
                values[_OPTIONS[option]] = float(value)
            except ValueError:
                raise InputError(
                    f"{option}: expected a number, got {value!r}", where=where
                ) from None
    return values, notes


def _stages(file: YamlFile) -> tuple[list[tuple[float, float]], str]:
    """Return rates with their seconds, and the spacing."""
    load = _section(file, ("load",))
    kind = load.get("type", "constant")
    if kind not in {"constant", "poisson"}:
        raise InputError(
            f"load.type: expected constant or poisson, got {kind!r}",
            where=file.where(("load", "type")),
        )
    stages = load.get("stages")
    if not isinstance(stages, list) or not stages:
        raise InputError("load.stages: expected a list", where=file.where(("load",)))
    steps = []
    for i, stage in enumerate(stages):
        found = stage if isinstance(stage, dict) else {}
        rate, seconds = _number(found.get("rate")), _number(found.get("duration"))
        if not (rate and seconds):
            raise InputError(
                f"load.stages.{i}: expected a rate and a duration above 0",
                where=file.where(("load", "stages", i)),
            )
        steps.append((rate, seconds))
    return steps, str(kind)


def _number(value: object) -> float | None:
    """Return a number above 0; None for anything else."""
    number = isinstance(value, int | float) and not isinstance(value, bool) and value > 0
    return float(value) if number and isinstance(value, int | float) else None


def _section(file: YamlFile, path: tuple[str, ...], *, required: bool = True) -> Content:
    """Return the mapping at a path."""
    found: object = file.content
    for key in path:
        found = found.get(key) if isinstance(found, dict) else None
    if isinstance(found, dict):
        return found
    if found is None and not required:
        return {}
    raise InputError(f"{'.'.join(path)}: expected keys and values", where=file.where(path))


def _whole(file: YamlFile, shared: Content, spellings: tuple[str, ...]) -> int:
    """Return a whole number above 0, under whichever name it has."""
    for name in spellings:
        value = shared.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
        if value is not None:
            raise InputError(
                f"data.shared_prefix.{name}: expected a whole number above 0, got {value!r}",
                where=file.where(("data", "shared_prefix", name)),
            )
    raise InputError(
        f"data.shared_prefix.{spellings[0]}: missing", where=file.where(("data", "shared_prefix"))
    )
