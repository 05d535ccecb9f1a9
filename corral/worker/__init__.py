"""Pulls leases, prepares code and environment, supervises the child, brings the results back."""
