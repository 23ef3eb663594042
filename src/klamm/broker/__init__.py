"""The embedded broker: Kafka's wire protocol in one process."""
