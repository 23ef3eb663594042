"""The mirror's own data connections: blocking sockets driven by one selector, without copies between them."""
