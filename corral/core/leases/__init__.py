"""Leases: renewing, fencing, ending and expiring them."""
