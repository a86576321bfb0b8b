"""When bytes arrived, by the kernel's word for it.

A busy event loop reads late, and a client that stamps what it reads blames its own lateness on the
server. Linux stamps every segment as it arrives (`SO_TIMESTAMPING`, no privilege needed) and hands
the stamp out with the data.

Rules:

- A stamp is on the calendar clock, which may be set while we run. So it is never mapped to the
  monotonic clock by a constant: each read compares the stamp with the calendar *at that read*, and
  the difference, the data's age, is taken off the monotonic time of the read.
- An age below zero (the calendar was set back in between) counts as zero, and no arrival is placed
  before the last thing that is known to have happened on the connection.
- Segments that were read together carry the stamp of the last of them, so an arrival is an upper
  bound: never too early.
- Where the kernel gives no stamp (other systems, the first packets after switching it on), the
  time of the read is the arrival.
"""

from __future__ import annotations

import struct
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _socket import socket as RawSocket  # noqa: N812 - the C class; see wire.py

    from kvbench.clock import Clock

_SO_TIMESTAMPING = 37  # asm-generic/socket.h; also the type of the control message
_RX_SOFTWARE = 1 << 3  # linux/net_tstamp.h: stamp what is received, in software
_REPORT_SOFTWARE = 1 << 4  # … and hand these stamps out
_SOL_SOCKET = 1
_TIMESPEC = struct.Struct("@ll")
_CONTROL_SIZE = 128  # one control message: header of 16 bytes, three timespecs of 16


class Receiver:
    """Reads from sockets of one event loop into one buffer.

    Args:
        clock: The monotonic clock that arrivals are given in.
        size: Most bytes of one read.
    """

    def __init__(self, clock: Clock, size: int = 256 * 1024) -> None:
        self._clock = clock
        self._buffer = bytearray(size)
        self._view = memoryview(self._buffer)
        self.stamped = False
        """Whether the kernel has stamped at least one read."""

    def enable(self, sock: RawSocket) -> None:
        """Ask the kernel to stamp what `sock` receives; without effect where it cannot."""
        if sys.platform == "linux":
            try:
                sock.setsockopt(_SOL_SOCKET, _SO_TIMESTAMPING, _RX_SOFTWARE | _REPORT_SOFTWARE)
            except OSError:
                return

    def read(self, sock: RawSocket, not_before: float) -> tuple[float, bytes]:
        """Return when data arrived, and the data; empty at end-of-file.

        Args:
            sock: A non-blocking socket.
            not_before: A moment on the clock at which the data cannot have been there yet.

        Raises:
            BlockingIOError: There is nothing to read.
            OSError: The connection is broken.
        """
        size, control, _, _ = sock.recvmsg_into([self._buffer], _CONTROL_SIZE)
        now = self._clock.now()
        age = _age(control)
        if age is not None:
            self.stamped = True
            now = max(now - age, min(now, not_before))
        return now, bytes(self._view[:size])


def _age(control: list[tuple[int, int, bytes]]) -> float | None:
    """Return how many seconds ago the kernel had the data, by its control messages."""
    for level, kind, data in control:
        if level == _SOL_SOCKET and kind == _SO_TIMESTAMPING and len(data) >= _TIMESPEC.size:
            seconds, nanoseconds = _TIMESPEC.unpack_from(data)
            now = time.clock_gettime_ns(time.CLOCK_REALTIME)
            age: float = (now - seconds * 1_000_000_000 - nanoseconds) / 1e9
            return max(0.0, age) if seconds else None
    return None
