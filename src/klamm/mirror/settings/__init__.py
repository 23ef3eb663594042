"""Settings of the mirror: ``mm2.properties`` read, checked and converted to typed values. No requests to clusters."""
