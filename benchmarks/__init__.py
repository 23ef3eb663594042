"""Side by side with Apache Kafka and MirrorMaker 2, on this machine, in one run: ``python -m benchmarks``."""
