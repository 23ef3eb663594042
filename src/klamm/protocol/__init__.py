"""What goes over the wire: frames, messages, record batches. No I/O."""
