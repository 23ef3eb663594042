"""Offsets of consumer groups: translated to checkpoints and committed for the groups on the target."""
