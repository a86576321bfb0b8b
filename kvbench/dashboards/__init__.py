"""Grafana dashboards, drawn from the metric catalogue."""
