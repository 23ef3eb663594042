"""The Kafka wire protocol: frames, messages and record batches. No I/O."""
