"""Report over the registration topic: which client versions support which configs, and who would ignore one."""
