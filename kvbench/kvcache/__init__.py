"""The prefix cache as vLLM keeps it: hash chain, block pool, KV events, and block-to-pods index."""
