"""What the target cluster alone tells about flows: for somebody who has its address and nothing else."""
