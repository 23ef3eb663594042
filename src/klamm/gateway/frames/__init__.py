"""Frames of the Kafka protocol in passing: cut without parsing, decoded where needed, addresses replaced. No I/O."""
