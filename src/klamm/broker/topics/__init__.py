"""The topics of the cluster: the catalog, creation and placement of new topics, and access to partition logs."""
