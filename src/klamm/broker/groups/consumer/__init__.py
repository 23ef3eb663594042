"""Consumer groups of KIP-848: the broker computes the assignment, and members reconcile with it by heartbeats."""
