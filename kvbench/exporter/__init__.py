"""What vLLM does not export: pool composition, evictions, headroom, duplication, balance."""
