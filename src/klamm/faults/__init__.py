"""Rules of injected faults (pure): which requests a fault concerns, and the response with its error."""
