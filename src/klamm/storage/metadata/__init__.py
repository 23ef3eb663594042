"""Metadata of the cluster in SQLite: the store with its group commit, the tables, and the history of config changes."""
