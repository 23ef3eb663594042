"""APIs as the gateway serves them: one module for each API key that needs more than to be forwarded unread.

``table`` lists the others. What is served is computed from both. Nothing outside of this package names an API.
"""
