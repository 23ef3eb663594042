"""Operations that an operator requests from a running mirror: pause, resume, stop, restart, and resets of offsets."""
