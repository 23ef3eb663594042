"""Consumer groups, classic protocol: a state machine without I/O, committed offsets, and the service over both."""
