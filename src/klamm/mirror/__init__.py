"""MirrorMaker on Spark: mirrors topics, their configs and their records from one Kafka cluster to another."""
