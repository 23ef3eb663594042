"""The copying of partitions: what is fetched, where it stands, what is produced, which positions are written."""
