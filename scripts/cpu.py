"""The CPU time of a process, to the nanosecond.

/proc/PID/stat counts ticks of 10 ms at which a process happens to run, which says nothing of one
that runs for 20 µs at a time; its clock counts what it had.
"""

from __future__ import annotations

import time

_SCHED = 2  # CPUCLOCK_SCHED, the clock of a process: include/linux/posix-timers_types.h


def cpu_seconds(pid: int) -> float:
    """Return the seconds of CPU that a process has had, all threads together (Linux).

    Raises:
        OSError: There is no such process.
    """
    return time.clock_gettime(
        ~pid << 3 | 2
    )  # CPUCLOCK_SCHED of the process: <linux/posix-timers.h>
