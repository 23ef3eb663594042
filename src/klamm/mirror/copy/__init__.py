"""Data path of the mirror: fetches source partitions, produces to the target and commits source offsets."""
