"""Storage of a broker: metadata in SQLite, and partition logs in Kafka's segment format."""
