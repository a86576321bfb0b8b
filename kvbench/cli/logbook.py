"""The log of a process that serves: a line an event on standard error, with the time and its level.

INFO is the ordinary: it listens, a pod joined, a file was read again, what was answered in all.
WARNING is trouble that is dealt with, ERROR what is not. Of other libraries only trouble is told.
"""

from __future__ import annotations

import logging

FORMAT = "%(asctime)s %(levelname)s %(message)s"


def log_to_stderr() -> logging.Logger:
    """Begin the log of this process; return where its own lines go."""
    logging.basicConfig(format=FORMAT)
    logger = logging.getLogger("kvbench")
    logger.setLevel(logging.INFO)
    return logger
