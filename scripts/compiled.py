"""A build hook: the wheel in which what every request passes is compiled, by mypyc.

    HATCH_BUILD_HOOK_ENABLE_CUSTOM=1 pip install .

It takes a C compiler and a minute. The same modules are in the wheel as Python too: tracebacks show
them. An editable installation stays Python, for a compiled module would hide what one edits.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from mypyc.build import mypycify
from setuptools import Distribution

# Not among them: structs that JSON is decoded into, for what is compiled says no more of a field
# than `list`; those that are frozen, which is lost; and classes that others inherit from.
MODULES = {
    "http": ("connection", "exchange", "heads"),
    "metrics": ("instruments",),
    "policies": ("held", "indexed", "pod_state", "prefix_cost", "prefixes", "rates", "rent"),
    "router": (
        "account", "breaker", "chats", "fleet", "forward", "heads", "intake", "journal", "keys",
        "membership", "meters", "models", "responses", "upstream", "usage",
    ),
}  # fmt: skip


class Compiled(BuildHookInterface):
    """Adds the compiled modules to the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile them, outside the source tree."""
        if version == "editable":
            return
        self._folder = Path(tempfile.mkdtemp())
        files = [f"kvbench/{package}/{name}.py" for package in MODULES for name in MODULES[package]]
        build = Distribution(
            {
                "name": "kvbench",
                "ext_modules": mypycify(
                    ["--follow-imports=silent", *files],
                    opt_level="3",
                    debug_level="0",
                    target_dir=str(self._folder / "c"),
                    group_name="kvbench",
                ),
            }
        ).get_command_obj("build_ext")
        built = self._folder / "lib"
        build.build_lib, build.build_temp = str(built), str(self._folder / "temp")
        build.ensure_finalized()
        build.run()
        for module in built.rglob("*.so"):
            build_data["force_include"][str(module)] = str(module.relative_to(built))
        build_data.update(pure_python=False, infer_tag=True)

    def finalize(self, version: str, _build_data: dict[str, Any], _artifact: str) -> None:
        """Leave nothing behind."""
        if version != "editable":
            shutil.rmtree(self._folder)
