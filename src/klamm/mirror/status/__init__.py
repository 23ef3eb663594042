"""Status of a mirror: the live pages and metrics of a running one, and the report from a target alone."""
