"""Why a pod delivered other cached tokens than were predicted: one cause for each request. Pure.

| cause | what happened |
|---|---|
| `none` | nothing: as predicted |
| `estimate` | it was an estimate: the pod is not exact, or the prompt's tokens are unknown |
| `template` | the pod counted other prompt tokens than we: another tokenizer or chat template |
| `last_block` | all of the prompt was cached, and the pod computed its last block anew |
| `evicted` | the first block that was missing has been evicted since the decision |
| `duplicate` | a copy of that block was counted that the pod does not have |
| `late` | the index was behind: blocks came after the decision, or their events were lost |
| `other` | none of these |

The first that fits is taken, from the top.
"""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

Cause = Literal[
    "none", "estimate", "template", "last_block", "evicted", "duplicate", "late", "other"
]

CAUSES: tuple[Cause, ...] = get_args(Cause)


class Evidence(msgspec.Struct, frozen=True, gc=False):
    """What is known when a request has ended.

    Attributes:
        exact: Whether the prediction came from an index that could be believed.
        predicted: Cached tokens that were predicted.
        delivered: Cached tokens, as the pod counted them.
        our_tokens: The prompt's tokens as we counted them.
        their_tokens: As the pod did; None if it did not say.
        block: Tokens per block.
        indexed: Of those predicted, tokens in blocks that the index had; the others were promised
            by requests under way.
        evicted: Whether the first block that was missing has been evicted since the decision.
        copies: Copies of that block that the pod is believed to have.
        exact_still: Whether the pod's index can still be believed.
    """

    exact: bool
    predicted: int
    delivered: int
    our_tokens: int
    their_tokens: int | None
    block: int = 1
    indexed: int = 0
    evicted: bool = False
    copies: int = 0
    exact_still: bool = True


def cause_of(evidence: Evidence) -> Cause:
    """Return why prediction and delivery differ."""
    if evidence.predicted == evidence.delivered:
        return "none"
    if not evidence.exact:
        return "estimate"
    if evidence.their_tokens is not None and evidence.their_tokens != evidence.our_tokens:
        return "template"
    return _shortfall(evidence) if evidence.delivered < evidence.predicted else "late"


def _shortfall(evidence: Evidence) -> Cause:
    """Return why less was delivered than predicted."""
    everything = (evidence.our_tokens - 1) // evidence.block * evidence.block
    short = evidence.predicted - evidence.delivered
    if evidence.predicted == everything and short == evidence.block and not evidence.evicted:
        return "last_block"
    if evidence.evicted:
        return "evicted"
    if evidence.copies > 1:
        return "duplicate"
    if evidence.delivered >= evidence.indexed or not evidence.exact_still:
        return "late"
    return "other"
