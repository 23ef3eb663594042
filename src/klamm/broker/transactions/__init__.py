"""Transactions: a state machine without I/O, the coordinator over it, and what the data path asks it."""
