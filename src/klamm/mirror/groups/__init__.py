"""Offsets of consumer groups: checkpoints of where they would stand on the target, and setting them there."""
