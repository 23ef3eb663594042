"""What ``mm2.properties`` asks for: read, checked and kept as typed values. Nothing here asks a cluster."""
