"""A file that names pods: what an operator, or a tool of theirs, writes and changes.

    pods:
      - http://10.0.0.7:8000
      - http://10.0.0.8:8000,events=tcp://10.0.0.8:5557

Each is what `--pod` takes. `[]` is none; nothing at all is an error, for it is what remains when
all lines are taken out in a hurry. So are unknown keys, URLs that are none, and pods that are named
twice, with file and line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvbench.errors import InputError
from kvbench.router.roster import parse_member
from kvbench.workload.yaml_file import read_yaml

if TYPE_CHECKING:
    from pathlib import Path


def read_pods(path: Path) -> list[str]:
    """Return the URLs that a file names.

    Raises:
        InputError: It cannot be read, or something in it is not as it must be.
    """
    file = read_yaml(path)
    content = file.content
    if not isinstance(content, dict) or list(content) != ["pods"]:
        raise InputError(
            "expected pods: and a list of URLs", where=file.where(()), hint="see docs/router.md"
        )
    urls = content["pods"]
    if not isinstance(urls, list):
        raise InputError(
            "pods: expected a list of URLs, or [] for none", where=file.where(("pods",))
        )
    names: set[str] = set()
    for number, url in enumerate(urls):
        where = file.where(("pods", number))
        if not isinstance(url, str):
            raise InputError(f"pods.{number}: expected a URL, got {url!r}", where=where)
        try:
            name = parse_member(url).name
        except InputError as error:
            message = error.message.replace("--pod", f"pods.{number}", 1)
            raise InputError(message, where=where, hint=error.hint) from None
        if name in names:
            raise InputError(f"pods.{number}: {name} is given twice", where=where)
        names.add(name)
    return urls
