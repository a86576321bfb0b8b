"""The kvbench command, one file a verb."""
