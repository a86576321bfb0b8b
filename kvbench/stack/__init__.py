"""Start, watch and stop the parts of a stack on this machine."""
