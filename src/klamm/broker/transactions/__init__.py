"""Transactions: a state machine without I/O, the transaction coordinator, and the checks of transactional writes."""
