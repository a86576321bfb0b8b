"""Continuous batching as vLLM v1's scheduler does it, without a clock, a thread or a model.

One step of the engine hands a budget of tokens to requests:

1. **Running requests first**, oldest first. Each gets what it lacks: the rest of its prompt, or the
   one token that it generated last. A long prompt is cut to what is left of the budget (chunked
   prefill). Where no block is free for it, the *youngest* running request is preempted: it loses
   its blocks and goes to the front of the waiting queue. Where that is the request itself, the
   round ends.
2. **Waiting requests next**, first come first served, unless something was preempted in this step.
   A request finds its cached blocks, then must fit *as a whole*; the first that does not fit ends
   the round, whoever is behind it. At most `max_num_seqs` run.
3. Every request whose tokens are all computed then generates one. A request that ends gives its
   blocks back at once, in the order of the step.

Rules that decide numbers:

- What a step schedules is cached when it is scheduled: requests of the same step share it.
- A preempted request computes prompt *and* answer so far again, out of the cache as far as that is
  still there. Its first lookup is the one that counts: `cached_tokens`, `prefix_cache_queries` and
  `prefix_cache_hits` ignore every later one. Lookups of requests that did not fit do not count.
- A preemption is counted when the request gets its next token, since vLLM reports it with that;
  requests that are aborted count neither as preempted since then nor as ended.
- `long_prefill_token_threshold` cuts chunks only while more than one request is in the engine.

Everything takes effect when `step` is called; its tokens are due at `StepResult.ends`. This is
vLLM's synchronous scheduling. With asynchronous scheduling (its default on GPUs) blocks of an ended
request come free one step later; that is not modelled.

Requests that could never be computed are refused when they are added: vLLM would let those whose
answer outgrows the pool wait for ever.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from kvbench.engine.publication import prompt_keys
from kvbench.engine.values import EngineCounters, StepResult, TokenOutput
from kvbench.errors import InputError
from kvbench.kvcache.blocks import BlockChain
from kvbench.kvcache.manager import BlockTable, CacheManager
from kvbench.kvcache.pool import BlockPool

if TYPE_CHECKING:
    from kvbench.engine.values import (
        EngineConfig,
        EngineRequest,
        FinishReason,
        KVEventSink,
        TimeModel,
    )
    from kvbench.kvcache.blocks import BlockHash, Chain


class _Sequence:
    """A request in the engine: its tokens, its blocks, how far it is.

    Every step reads `length` and `most` of every request, so they are kept: tokens so far, which
    are the chain's, and how many the request may generate.
    """

    __slots__ = (
        "cached_tokens",
        "chain",
        "computed",
        "generated",
        "length",
        "most",
        "preemptions",
        "request",
        "table",
        "unreported",
    )

    def __init__(self, request: EngineRequest, chain: Chain, max_model_len: int) -> None:
        self.request = request
        self.chain = chain
        self.table = BlockTable(chain)
        self.computed = 0
        self.generated = 0
        self.length = len(chain)
        self.most = min(request.max_tokens, max_model_len - self.length)
        self.preemptions = 0
        self.unreported = 0
        self.cached_tokens = 0


class _Relay:
    """Says what the pool observes in the words of the engine's sink."""

    __slots__ = ("_live", "_sink")

    def __init__(self, sink: KVEventSink, live: dict[str, _Sequence]) -> None:
        self._sink = sink
        self._live = live

    def stored(self, chain: Chain, first: int, last: int) -> None:
        """Pass on blocks with their hashes, their parent and their tokens."""
        assert isinstance(chain, BlockChain)  # others have no tokens to publish
        size = chain.block_size
        self._sink.block_stored(
            chain.hashes[first:last],
            chain.parent_of(first),
            chain.tokens[first * size : last * size],
            self._live[chain.owner].request,
            first * size,
        )

    def removed(self, block_hash: BlockHash) -> None:
        """Pass on an eviction."""
        self._sink.block_removed(block_hash)

    def cleared(self) -> None:
        """Pass on a reset."""
        self._sink.all_blocks_cleared()


class Engine:
    """One pod's engine: a queue, a batch, a block pool.

    Args:
        config: Its settings.
        time: How long a step takes.
        sink: Where cache events go. They belong to the step that is running when they are told,
            and a server publishes them when it ends.

    Raises:
        InputError: A setting makes no sense.

    Attributes:
        config: As given.
        counters: Totals since it began.
        pool: Its blocks; `resident`, `evictable`, `free` and `usable` are read by exporters.
    """

    def __init__(
        self, config: EngineConfig, time: TimeModel, sink: KVEventSink | None = None
    ) -> None:
        _check(config)
        self.config = config
        self.counters = EngineCounters()
        self._time = time
        self._live: dict[str, _Sequence] = {}
        self._waiting: deque[_Sequence] = deque()
        self._running: list[_Sequence] = []
        self._kept: dict[str, BlockTable] = {}  # of requests that have ended
        self.pool = BlockPool(config.num_gpu_blocks, _Relay(sink, self._live) if sink else None)
        self._cache = CacheManager(
            self.pool, config.block_size, enable_caching=config.enable_prefix_caching
        )

    @property
    def has_work(self) -> bool:
        """Whether a step would schedule anything."""
        return bool(self._live)

    @property
    def running(self) -> int:
        """Requests in the batch."""
        return len(self._running)

    @property
    def running_tokens(self) -> int:
        """Tokens of the requests in the batch, prompts and answers."""
        return sum(one.length for one in self._running)

    @property
    def waiting(self) -> int:
        """Requests in the queue, preempted ones included."""
        return len(self._waiting)

    @property
    def kv_cache_usage(self) -> float:
        """Referenced blocks as a fraction of the usable."""
        return self.pool.usage

    def add(self, request: EngineRequest, chain: Chain | None = None) -> None:
        """Queue a request; the next step sees it.

        Args:
            request: The request.
            chain: Its prompt, where tokens are not known one by one; then only the number of
                `prompt_token_ids` is read. Not for an engine with a sink.

        Raises:
            InputError: The request is malformed, its id is taken, or it could never fit.
        """
        self._check_fits(request)
        config = self.config
        chain = chain or _chain_of(request, config.block_size)
        sequence = _Sequence(request, chain, config.max_model_len)
        self._live[request.id] = sequence
        self._waiting.append(sequence)

    def abort(self, request_id: str) -> TokenOutput | None:
        """End a request where it stands and give its blocks back, also those that it kept.

        Returns:
            Its last output, without tokens; None where there is no such request (any more).
        """
        if request_id in self._kept:
            self._cache.release(self._kept.pop(request_id))
        sequence = self._live.get(request_id)
        if sequence is None:
            return None
        queue = self._running if sequence.table.blocks else self._waiting
        queue.remove(sequence)
        self._end(sequence, "abort")
        return TokenOutput(request_id, (), "abort", sequence.cached_tokens)

    def reset_prefix_cache(self) -> bool:
        """Forget all cached blocks, unless one is in use; return whether it was done."""
        return self.pool.reset()

    def step(self, now: float) -> StepResult:
        """Run one scheduler step that begins at `now` (seconds)."""
        scheduled, preempted = self._schedule()
        work = [(tokens, sequence.computed) for sequence, tokens in scheduled]
        outputs, live = [], len(self._live)
        for sequence, tokens in scheduled:
            computed = sequence.computed = sequence.computed + tokens
            if computed == sequence.length:
                outputs.append(self._generate(sequence))
        if len(self._live) < live:
            self._running = [item for item in self._running if item.request.id in self._live]
        self.counters.generation_tokens += len(outputs)
        self.counters.evictions = self.pool.evictions
        return StepResult(
            began=now,
            ends=now + self._time.step_seconds(work) if work else now,
            outputs=tuple(outputs),
            scheduled_tokens={sequence.request.id: tokens for sequence, tokens in scheduled},
            preempted=tuple(sequence.request.id for sequence in preempted),
        )

    def plain_steps(self) -> int:
        """Return how many of the next steps are sure to do nothing but add a token to each request.

        In such a step all of the batch decode, and nobody is admitted, preempted or ends. 0 where
        that is not certain of the very next step.
        """
        running, config = self._running, self.config
        most = min(config.max_num_seqs, config.max_num_batched_tokens)
        if not 0 < len(running) <= most or not all(map(_decodes, running)):
            return 0
        steps = min(one.most - one.generated for one in running) - 1
        if self._waiting and len(running) < most:
            head = self._waiting[0].table
            if self._cache.fits(head, self._cache.lookup(head)):
                return 0
            # What does not fit now will not fit until the pool has changed.
            return min(steps, self._quiet_steps())
        if sum(self._cache.lacking(one.table, one.length + steps - 1) for one in running) > (
            self.pool.free
        ):
            return min(steps, self._quiet_steps())
        return steps

    def decode(self, steps: int) -> None:
        """Run so many steps at once, at most `plain_steps()`.

        Afterwards all is as after as many calls of `step`. How long they took is for the caller to
        know.
        """
        size, due = self.config.block_size, []
        for place, one in enumerate(self._running):
            length, generated = one.length, one.generated
            more = range(generated, generated + steps)
            one.chain.extend(map(one.request.next_token, more), steps)
            one.generated += steps
            one.length += steps
            one.computed += steps
            # With these many tokens a block is full, and with one more another is needed.
            for first in (length + -length % size, length + (1 - length) % size):
                due += [
                    (tokens - length, place, tokens)
                    for tokens in range(first, length + steps, size)
                ]
        for _, place, tokens in sorted(due):
            self._cache.extend(self._running[place].table, tokens)
        self.counters.generation_tokens += steps * len(self._running)
        self.counters.evictions = self.pool.evictions

    def _quiet_steps(self) -> int:
        """Return how many decoding steps the pool does not notice."""
        size = self.config.block_size
        return max(min(len(one.table.blocks) * size - one.length for one in self._running), 0)

    def _schedule(self) -> tuple[list[tuple[_Sequence, int]], list[_Sequence]]:
        """Hand out the token budget; return who got how much, and who was preempted."""
        config = self.config
        budget = config.max_num_batched_tokens
        alone = len(self._live) == 1
        longest = budget if alone else config.long_prefill_token_threshold or budget
        scheduled: list[tuple[_Sequence, int]] = []
        preempted: list[_Sequence] = []
        while len(scheduled) < len(self._running) and budget:
            sequence = self._running[len(scheduled)]
            tokens = min(sequence.length - sequence.computed, longest, budget)
            needed = sequence.computed + tokens
            if needed >= sequence.table.due and not self._make_room(sequence, needed, preempted):
                break
            scheduled.append((sequence, tokens))
            budget -= tokens
        while self._waiting and budget and not preempted:
            if len(self._running) >= config.max_num_seqs:
                break
            sequence = self._waiting[0]
            hits = self._cache.lookup(sequence.table)
            found = len(hits) * config.block_size
            tokens = min(sequence.length - found, longest, budget)
            if not self._cache.admit(sequence.table, hits, tokens):
                break
            self._running.append(self._waiting.popleft())
            self._admitted(sequence, found)
            scheduled.append((sequence, tokens))
            budget -= tokens
        return scheduled, preempted

    def _make_room(self, sequence: _Sequence, tokens: int, preempted: list[_Sequence]) -> bool:
        """Extend a running request, preempting younger ones; False where it had to go itself."""
        while not self._cache.extend(sequence.table, tokens):
            victim = self._running.pop()
            self._cache.release(victim.table)
            victim.computed = 0
            victim.preemptions += 1
            victim.unreported += 1
            self._waiting.appendleft(victim)
            preempted.append(victim)
            if victim is sequence:
                return False
        return True

    def _admitted(self, sequence: _Sequence, found: int) -> None:
        """Note what a request found in the cache when it left the queue."""
        sequence.computed = found
        if sequence.preemptions:
            return
        sequence.cached_tokens = found
        if self.config.enable_prefix_caching:
            self.counters.prefix_cache_queries += sequence.length
            self.counters.prefix_cache_hits += found

    def _generate(self, sequence: _Sequence) -> TokenOutput:
        """Generate a token for a request whose tokens are all computed."""
        request, generated = sequence.request, sequence.generated
        token = request.next_token(generated)
        if not generated:
            self.counters.prompt_tokens += sequence.length
        if sequence.unreported:
            self.counters.num_preemptions += sequence.unreported
            sequence.unreported = 0
        sequence.chain.append(token)
        sequence.length += 1
        generated = sequence.generated = generated + 1
        reason: FinishReason | None = None
        if token in request.stop_token_ids:
            reason = "stop"
        elif generated >= sequence.most:
            reason = "length"
        if reason is not None:
            self._end(sequence, reason)
        return TokenOutput(request.id, (token,), reason, sequence.cached_tokens)

    def _end(self, sequence: _Sequence, reason: FinishReason) -> None:
        """Give back what a request held, unless it keeps it, and forget it."""
        if sequence.request.keeps_blocks and reason != "abort":
            self._kept[sequence.request.id] = sequence.table
        else:
            self._cache.release(sequence.table)
        del self._live[sequence.request.id]
        if reason != "abort":
            success = self.counters.request_success
            success[reason] = success.get(reason, 0) + 1

    def _check_fits(self, request: EngineRequest) -> None:
        """Refuse what can never be computed."""
        config, length = self.config, len(request.prompt_token_ids)
        if request.id in self._live or request.id in self._kept:
            raise InputError(f"id: {request.id!r} is in the engine already")
        if not 1 <= length < config.max_model_len:
            raise InputError(
                f"prompt_token_ids: expected 1 to {config.max_model_len - 1} tokens, got {length}",
                hint=f"max_model_len is {config.max_model_len}, and the answer needs one token",
            )
        if request.max_tokens < 1:
            raise InputError(f"max_tokens: expected at least 1, got {request.max_tokens}")
        # The last token of an answer is never computed and needs no room.
        longest = min(length + request.max_tokens, config.max_model_len) - 1
        if longest > self.pool.usable * config.block_size:
            raise InputError(
                f"prompt and answer: {longest} tokens do not fit into the cache's "
                f"{self.pool.usable * config.block_size}",
                hint="lower max_tokens, or give the pod more blocks",
            )


def _decodes(sequence: _Sequence) -> bool:
    """Return whether a request lacks its last token only, and no token can end it early."""
    return (
        sequence.generated > 0
        and sequence.length - sequence.computed == 1
        and not sequence.request.stop_token_ids
    )


def _chain_of(request: EngineRequest, block_size: int) -> BlockChain:
    """Return the chain of a prompt.

    Raises:
        InputError: A token id is none.
    """
    prompt, keys = request.prompt_token_ids, prompt_keys(request)
    try:
        return BlockChain(prompt, block_size, keys, owner=request.id)
    except (OverflowError, TypeError) as error:
        raise InputError(
            f"prompt_token_ids: expected whole numbers from 0 to 2³² - 1: {error}"
        ) from error


def _check(config: EngineConfig) -> None:
    """Refuse settings that make no sense."""
    for name in ("block_size", "max_num_seqs", "max_num_batched_tokens"):
        if getattr(config, name) < 1:
            raise InputError(f"{name}: expected at least 1, got {getattr(config, name)}")
    if config.max_model_len < 2:
        raise InputError(f"max_model_len: expected at least 2, got {config.max_model_len}")
    if config.long_prefill_token_threshold < 0:
        raise InputError(
            "long_prefill_token_threshold: expected 0 (no limit) or more, got "
            f"{config.long_prefill_token_threshold}"
        )
