"""Mirroring with equal offsets: records are produced so that each gets its source offset, and gaps are filled."""
