"""Fetch responses as byte ranges of the logs, and incremental fetch sessions (KIP-227)."""
