"""kvbench: are LLM requests landing where their KV cache is, and what does it cost when not?"""

from importlib.metadata import version

__version__ = version("kvbench")
