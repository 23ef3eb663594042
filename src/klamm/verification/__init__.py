"""Whether both sides of a mirror hold the same records, and where they do not: ``klamm mirror verify``."""
