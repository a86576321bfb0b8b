"""A prefix-aware reverse proxy in front of vLLM pods."""
