"""Every metric's name, kind, unit, labels, buckets and help: once."""
