"""Rules of injected faults, without I/O: which requests a fault concerns, and the response with its error."""
