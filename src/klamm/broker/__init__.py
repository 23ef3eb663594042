"""Kafka broker in one process."""
