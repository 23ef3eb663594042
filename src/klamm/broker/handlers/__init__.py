"""Request handlers, one module per API key: ``api_044_...`` handles ``api_key=44``."""
