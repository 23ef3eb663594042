"""``klamm mirror verify``: whether both sides hold the same records, and where they do not."""
