"""Recording rules and alerts, drawn from the metric catalogue, and their runbooks."""
