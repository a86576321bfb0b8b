"""Which pod gets a request, and why."""
