"""Where gates are written: under `gates:` of a workload file, or of a file of their own.

    gates:
      - ttft p95 < 400ms
      - hit_rate > 0.97 of ceiling

In a file of their own `gates` is the only key. Refused, each with file and line: another key there,
a list that is none or empty, and a line that is no gate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvbench.errors import InputError
from kvbench.gates.grammar import HINT, parse_gate
from kvbench.workload.yaml_file import read_yaml

if TYPE_CHECKING:
    from pathlib import Path

    from kvbench.gates.gate import Gate


def read_gates(path: Path) -> list[Gate]:
    """Return the gates of a file, or of a workload file; of the latter perhaps none.

    Raises:
        InputError: The file cannot be read, or something in it is not as it must be.
    """
    file = read_yaml(path)
    content = file.content
    if not isinstance(content, dict):
        raise InputError("expected a list under `gates:`", where=file.where(()), hint=HINT)
    if "sessions" not in content:  # no workload: a file of gates
        for key in content:
            if key != "gates":
                raise InputError(f"{key}: unknown key", where=file.where((key,)), hint=HINT)
    lines = content.get("gates", [] if "sessions" in content else None)
    if not isinstance(lines, list) or ("sessions" not in content and not lines):
        raise InputError(
            "gates: expected a list of gates such as `- ttft p95 < 400ms`",
            where=file.where(("gates",)),
            hint=HINT,
        )
    gates = []
    for number, line in enumerate(lines):
        where = file.where(("gates", number))
        if not isinstance(line, str):
            raise InputError(
                "gates: expected text such as `ttft p95 < 400ms`, got another value",
                where=where,
                hint="put the line in quotes: YAML takes some of its signs for its own",
            )
        gates.append(parse_gate(line, where))
    return gates
