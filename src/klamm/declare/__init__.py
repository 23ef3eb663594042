"""Topics as a file wants them: reading the file, and the difference to what is there. Pure: no I/O, no clock."""
