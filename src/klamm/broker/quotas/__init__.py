"""Client quotas in force: who has had more than its share waits."""
