"""What klamm keeps on disk: metadata in SQLite, partition logs in Kafka's segment format."""
