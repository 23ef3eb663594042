"""Mirroring as a broker without storage that leads the remote partitions, so that offsets and bytes stay the same."""
