"""Kafka gateway: a proxy in front of any Kafka cluster that rewrites broker addresses and intercepts requests."""
