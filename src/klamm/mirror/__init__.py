"""MirrorMaker's work on Spark: topics, their configs and their records from one Kafka cluster to another."""
