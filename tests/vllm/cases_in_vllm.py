"""Plays `.cache` files to the KV cache manager of an installed vLLM 0.32; no model, no GPU.

Runs inside vLLM's Python: `python cases_in_vllm.py FILE…`. Whatever does not hold ends it.
"""

import sys
from pathlib import Path

import torch
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request

sys.path.insert(0, str(Path(__file__).parent.parent))

from cache_language import Case

HASH = get_hash_fn_by_name("sha256")


class RealManager:
    """The backend: what vLLM's scheduler does with its manager, without the scheduler."""

    def pool(self, blocks, size):
        """Begin anew; one block more, which vLLM keeps as the null block."""
        spec = FullAttentionSpec(block_size=size, num_kv_heads=1, head_size=1, dtype=torch.float32)
        self.size, self.requests, self.texts = size, {}, {}
        self.manager = KVCacheManager(
            KVCacheConfig(blocks + 1, [], [KVCacheGroupSpec(["layer"], spec)]),
            max_model_len=4096,
            scheduler_block_size=size,
            hash_block_size=size,
            enable_kv_cache_events=True,
        )

    def ask(self, name, tokens):
        """Look up and allocate the whole prompt, as the scheduler admits it."""
        hasher = get_request_block_hasher(self.size, HASH)
        request = Request(name, tokens, SamplingParams(max_tokens=1), None, block_hasher=hasher)
        blocks, found, _ = self.manager.get_computed_blocks(request)
        new = len(tokens) - found
        if not self.manager.allocate_slots(
            request, new, found, blocks, full_sequence_must_fit=True
        ):
            return None
        self.requests[name] = request
        return found // self.size

    def free(self, name):
        """End a request."""
        self.manager.free(self.requests.pop(name))

    def clear(self):
        """Reset the prefix cache."""
        return self.manager.reset_prefix_cache()

    def events(self):
        """Return what was published, block by block."""
        told = []
        for event in self.manager.take_events():
            kind = type(event).__name__
            if kind == "AllBlocksCleared":
                told.append(("cleared",))
            elif kind == "BlockRemoved":
                told += [("removed", self.texts[key]) for key in event.block_hashes]
            else:
                text = list(self.texts.get(event.parent_block_hash, []))
                for number, key in enumerate(event.block_hashes):
                    start = number * self.size
                    text = text + event.token_ids[start : start + self.size]
                    self.texts[key] = text
                    told.append(("stored", text))
        return told


if __name__ == "__main__":
    init_none_hash(HASH)
    for path in map(Path, sys.argv[1:]):
        Case(path, RealManager()).play()
        sys.stdout.write(f"holds: {path.stem}\n")
