"""Groups of the classic protocol: a state machine without I/O."""
