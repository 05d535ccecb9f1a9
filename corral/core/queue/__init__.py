"""Which run starts next on which host, and why another does not."""
