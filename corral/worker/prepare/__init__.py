"""Everything between a lease and the start of its child."""
