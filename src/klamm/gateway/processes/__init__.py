"""Several processes of one gateway: one accepts connections and passes them to the others."""
