"""Rules of injected faults, without I/O: which requests a fault concerns."""
