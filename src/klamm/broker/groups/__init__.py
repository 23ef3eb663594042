"""Consumer groups of the classic protocol: a state machine without I/O, committed offsets, the group coordinator."""
