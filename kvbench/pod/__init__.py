"""A simulated vLLM server: the same face, the same cache, no GPU."""
