"""Which pod serves which models: as `/v1/models` of each pod has said. Pure; no socket.

Rules:

- A pod that has not said yet, or says nothing that can be read, is taken to serve whatever is
  asked for: the router refuses only what it knows to be in vain.
- What a pod has said holds until it says something else, also while it is down: a model whose pods
  are all down is unavailable, not unknown.
- A model that nobody serves raises `UnknownModelError`, and a doubt: a pod may have loaded it
  since, so all are asked again at their next probe.
- A request without a model may go to any pod.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Container

Entry = dict[str, object]
"""A model as a pod describes it: `id`, and whatever else."""

_MOST_MODELS: Final = 1024  # of one pod
_MOST_NAMED: Final = 20  # in a sentence


class UnknownModelError(LookupError):
    """No pod serves the model; the message says which there are."""


class _Listing(msgspec.Struct):
    data: list[dict[str, object]]


def read_models(body: bytes) -> dict[str, Entry] | None:
    """Return the models in an answer to `GET /v1/models`, by id; None if it is no such answer."""
    try:
        entries = msgspec.json.decode(body, type=_Listing).data
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    found = {entry["id"]: entry for entry in entries if isinstance(entry.get("id"), str)}
    return {str(name): found[name] for name in list(found)[:_MOST_MODELS]}


class Models:
    """What the pods serve."""

    def __init__(self) -> None:
        self._by_pod: dict[str, dict[str, Entry] | None] = {}
        self._doubted: set[str] = set()
        self._known: dict[str, frozenset[str] | None] = {}  # pods by model; None is all of them
        self._silent: frozenset[str] = frozenset()

    def joined(self, pod: str) -> None:
        """Take note of a pod, which has not said anything yet."""
        self._by_pod[pod] = None
        self._sort()

    def left(self, pod: str) -> None:
        """Forget a pod."""
        self._by_pod.pop(pod, None)
        self._doubted.discard(pod)
        self._sort()

    def learned(self, pod: str, models: dict[str, Entry] | None) -> bool:
        """Take note of what a pod says, None if nothing; return whether that is a change."""
        before = self._by_pod.get(pod)
        self._doubted.discard(pod)
        if models is None:
            return False
        self._by_pod[pod] = models
        self._sort()
        return before is not None and set(before) != set(models)

    def doubted(self, pod: str) -> bool:
        """Return whether a pod should be asked now."""
        return pod in self._doubted

    def serving(self, model: str) -> Container[str] | None:
        """Return the names of the pods that serve a model, or None if all do.

        Raises:
            UnknownModelError: None does.
        """
        if model in self._known:
            return self._known[model]
        if len(self._silent) == len(self._by_pod) or not model:
            return None
        if self._silent:
            return self._silent
        self._doubted = set(self._by_pod)
        raise UnknownModelError(f"The model `{model[:200]}` does not exist. {self._sentence()}")

    def of(self, pod: str) -> list[str] | None:
        """Return the models of a pod; None if it has not said."""
        models = self._by_pod.get(pod)
        return None if models is None else list(models)

    def union(self) -> list[Entry]:
        """Return all models, each as the first pod describes it that serves it."""
        found: dict[str, Entry] = {}
        for models in self._told():
            for name, entry in models.items():
                found.setdefault(name, entry)
        return list(found.values())

    @property
    def several(self) -> bool:
        """Whether it matters which model is asked for: the pods are not all alike."""
        return any(pods is not None for pods in self._known.values())

    def numbers(self) -> dict[str, int]:
        """Return how many pods have said that they serve it, by model."""
        pods = [name for models in self._told() for name in models]
        return {name: pods.count(name) for name in self._known}

    def _told(self) -> list[dict[str, Entry]]:
        """Return what pods have said, those that have."""
        return [models for models in self._by_pod.values() if models is not None]

    def _sort(self) -> None:
        """Work out which pods serve each model."""
        self._silent = frozenset(pod for pod, said in self._by_pod.items() if said is None)
        names = {name for models in self._told() for name in models}
        self._known = {}
        for name in sorted(names):
            pods = {pod for pod, said in self._by_pod.items() if said is None or name in said}
            self._known[name] = None if len(pods) == len(self._by_pod) else frozenset(pods)

    def _sentence(self) -> str:
        """Return which models there are, in words."""
        names = list(self._known)
        more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        served = ", ".join(names[:_MOST_NAMED]) + more
        return f"The pods serve {served or 'none'}."
