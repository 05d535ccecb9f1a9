"""Random failures under load."""
