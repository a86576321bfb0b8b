"""A metric's name is written once: in `kvbench.metrics`."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from kvbench.metrics.catalogue import CATALOGUE
from kvbench.metrics.engines import QUANTITIES, engine_of, spellings

PACKAGE = Path(__file__).parents[2] / "kvbench"
NAMES = {metric.name for metric in CATALOGUE} | {
    wire for q in QUANTITIES for name in q.names if engine_of(name) for wire in spellings(name)
}
KNOWN = "|".join(sorted(NAMES, key=len, reverse=True))
NAME = re.compile(rf"\b(?:{KNOWN}|(?:vllm|sglang):[a-z_]{{4,}})\b")


def literals(path: Path):
    """Yield (line, text) of the strings of a module, its docstrings left out."""
    tree = ast.parse(path.read_text())
    bare = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if id(node) in bare or not isinstance(node, ast.Constant):
            continue
        if isinstance(node.value, str):
            yield node.lineno, node.value


def test_no_module_but_the_catalogues_spells_a_metrics_name():
    """Whoever needs one takes it from there."""
    found = [
        f"{path.relative_to(PACKAGE.parent)}:{line}: {match.group()}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.parent.name != "metrics" or path.parent.parent != PACKAGE
        for line, text in literals(path)
        for match in NAME.finditer(text)
    ]

    assert found == []


def test_the_test_would_see_one(tmp_path):
    """Ours, an engine's, with a colon or an underscore; docstrings may name them."""
    module = tmp_path / "module.py"
    names = [CATALOGUE[0].name, QUANTITIES[0].names[0], "vllm_prefix_cache_hits_total"]
    module.write_text('"""vllm:is_named_here."""\n' + "\n".join(f'x = "{n}"' for n in names))

    assert [t for _, t in literals(module) if NAME.search(t)] == names
