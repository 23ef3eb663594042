"""Records of the mirror in internal topics: their formats, and how they are read and written."""
