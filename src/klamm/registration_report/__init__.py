"""What the registration topic tells: which client versions support which configs, and who would not follow a change."""
