"""What several tests lean on: real brokers, our own broker, processes that never outlive the run."""
