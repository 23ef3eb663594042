"""Status of a mirror: page and metrics of a running mirror, and a report made from the target cluster alone."""
