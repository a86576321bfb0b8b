"""What prompts share: a tree of all prompts so far, walked as segments, without any token.

Nothing is tokenised and no block is hashed. From a place in the tree, a segment leads on; a shorter
segment is the beginning of a longer one with the same key. So the cost of a prompt grows with the
number of its segments, whatever their length.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kvbench.workload.plan import Plan, PlannedTurn


class SharedTree:
    """All prompts so far, as paths of segments.

    A place in the tree is a number. From a place, `reach` is the longest segment of a key that was
    seen there, and `steps` leads to the place behind a segment of exactly that length.
    """

    def __init__(self) -> None:
        self._reach: dict[tuple[int, str | int], int] = {}
        self._steps: dict[tuple[int, str | int, int], int] = {}

    def add(self, path: Iterable[tuple[str | int, int]]) -> int:
        """Add a path of (key, tokens); return how many of its tokens were there before."""
        reach, steps = self._reach, self._steps
        place, shared, known = 0, 0, True
        for key, tokens in path:
            longest = reach.get((place, key), 0)
            if known:
                shared += min(longest, tokens)
            if tokens > longest:
                reach[place, key] = tokens
            step = (place, key, tokens)
            behind = steps.get(step)
            if behind is None:
                known = False
                behind = steps[step] = len(steps) + 1
            place = behind
        return shared


def generated(turn: PlannedTurn) -> Iterator[tuple[str, int]]:
    """Yield what the engine keeps of an answer, as (key, tokens): all but its last token."""
    kept = turn.max_tokens - 1
    if turn.reasoning_tokens:
        yield turn.reasoning_key, min(turn.reasoning_tokens, kept)
        kept -= turn.reasoning_tokens
    if kept > 0:
        yield turn.answer_key, kept


def shared_share(plan: Plan, block_size: int) -> float:
    """Return the share of content tokens that an endless cache would hit, in full blocks.

    It is the ceiling (`kvbench.oracle.ceiling`) without the chat template's tokens.
    """
    tree = SharedTree()
    hits = total = 0
    for turn in plan.turns:
        path = [(s.key, s.tokens) for message in turn.messages for s in message.segments]
        tokens = sum(n for _, n in path)
        kept = generated(turn) if plan.history == "answers" and turn.max_tokens > 1 else ()
        hits += min(tree.add([*path, *kept]), tokens - 1) // block_size * block_size
        total += tokens
    return hits / total if total else 0.0


def prefix_tokens(plan: Plan) -> int:
    """Return the tokens of the nodes of the prefix tree that the plan asks for: its working set."""
    nodes: dict[str, int] = {}
    for turn in plan.turns:
        for segment in turn.messages[0].segments:
            if segment.key.startswith("prefix/"):
                nodes[segment.key] = max(segment.tokens, nodes.get(segment.key, 0))
    return sum(nodes.values())
