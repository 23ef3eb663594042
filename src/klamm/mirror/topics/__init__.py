"""Sync of topics, topic configs and ACLs from the source to the target of a flow, and its control loop."""
