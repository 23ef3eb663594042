"""Groups of consumers: a coordinator for each kind of request, one registry of all groups, and committed offsets."""
