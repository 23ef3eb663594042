"""Aggregation of the registration topic on Spark."""
