"""Progress of flows, partitions and groups, shown on the status page and in metrics."""
