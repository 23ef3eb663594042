"""Answers to Fetch: byte ranges of the logs, and the incremental sessions of KIP-227."""
