"""Real processes, as a user runs them."""
