"""Demonstration of klamm on real data. Every claim is checked."""
