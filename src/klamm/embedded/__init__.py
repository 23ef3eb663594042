"""Embedded broker for Python programs and tests, in a child process that ends with its parent."""
