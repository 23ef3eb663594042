"""Support for tests: real Kafka brokers, klamm brokers, and child processes that end with the test run."""
