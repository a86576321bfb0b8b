"""The policies' names. A module of its own: the command line needs no more than this."""

from __future__ import annotations

NAMES = (
    "random",
    "round_robin",
    "least_load",
    "power_of_two",
    "session",
    "chwbl",
    "prefix_estimate",
    "prefix_precise",
    "prefix_cost",
)

DEFAULT = "prefix_cost"
