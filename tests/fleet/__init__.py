"""Several hosts on bad networks."""
