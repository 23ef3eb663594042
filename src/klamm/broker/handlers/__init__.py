"""One module per API key: ``api_044_...`` answers ``api_key=44``."""
