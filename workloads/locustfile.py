"""Locust, with a kvbench workload as its load.

From the root of the repository:

    locust -f workloads/locustfile.py --workload workloads/chat.yaml --host http://127.0.0.1:8000

Add `--headless` for no web UI, `--processes 2` for two workers. What is sent when is the plan's
business; the number of users changes nothing. Rows are written to a new folder under runs/.
"""

from kvbench.load.locustfile import Conversations

__all__ = ["Conversations"]
