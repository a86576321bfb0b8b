"""The ceiling: what an endless cache would hold of every prompt of a plan.

Turns are taken in the order of the plan, one after the other, on one pod that never forgets. Of a
prompt of P tokens it holds the longest beginning that an earlier prompt began with too, in full
blocks of B tokens, and at most floor((P - 1) / B) blocks, for the last token is always computed.

Where later turns repeat the model's real answers (history "answers"), the answer's blocks are in
the cache as well: of G generated tokens the first G - 1, since the last one's keys and values are
never computed. It is taken that an answer tokenises to the tokens that were generated. Planned
answers are in no cache before they were sent in a prompt.

Nothing is tokenised and no block is hashed: prompts are walked as segments through a tree, in
which a shorter segment is the beginning of a longer one with the same key. So the cost grows with
the number of segments, whatever the block size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvbench.workload.plan import Segment
from kvbench.workload.sharing import SharedTree, generated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvbench.workload.plan import Plan, PlannedTurn
    from kvbench.workload.render import Renderer


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The hits of an endless cache, turn by turn.

    Attributes:
        block_size: Tokens per block.
        prompt_tokens: Tokens of each prompt, in plan order.
        cached_tokens: Of these, how many were cached.
    """

    block_size: int
    prompt_tokens: tuple[int, ...]
    cached_tokens: tuple[int, ...]

    @property
    def hit_rate(self) -> float:
        """Cached tokens over prompt tokens; 0 where there are none."""
        total = sum(self.prompt_tokens)
        return sum(self.cached_tokens) / total if total else 0.0


def ceiling(plan: Plan, renderer: Renderer | None, block_size: int) -> Ceiling:
    """Return the ceiling of `plan`.

    Args:
        plan: The plan.
        renderer: Knows the chat template's tokens; None leaves them out.
        block_size: Tokens per block, at least 1.
    """
    tree = SharedTree()
    prompts, cached = [], []
    for turn in plan.turns:
        tokens = renderer.prompt_tokens(turn) if renderer else turn.content_tokens
        shared = tree.add(_path(plan, turn, renderer))
        prompts.append(tokens)
        cached.append(min(shared, tokens - 1) // block_size * block_size)
    return Ceiling(block_size, tuple(prompts), tuple(cached))


def _path(
    plan: Plan, turn: PlannedTurn, renderer: Renderer | None
) -> Iterator[tuple[str | int, int]]:
    """Yield the tokens whose blocks this turn leaves in the cache, as (key, tokens)."""
    if renderer is None:
        for message in turn.messages:
            for segment in message.segments:
                yield segment.key, segment.tokens
    else:
        for piece in renderer.pieces(turn):
            yield (piece.key, piece.tokens) if isinstance(piece, Segment) else (piece, 1)
    if plan.history == "answers" and turn.max_tokens > 1:
        yield from generated(turn)
