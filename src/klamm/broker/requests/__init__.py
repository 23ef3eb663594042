"""Steps that several handlers share: permission checks, and lookups and changes that need the request's context.

They use the services and the context of a request. The services do not import them.
"""
