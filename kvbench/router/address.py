"""Where a pod is: see `kvbench.http.address`."""

from __future__ import annotations

from kvbench.http.address import Address, parse_address

__all__ = ["Address", "parse_address"]
