"""What will be sent: workload file → typed spec → plan of turns, and readers of real traces."""
