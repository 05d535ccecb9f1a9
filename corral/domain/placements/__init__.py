"""Bringing capacity to a run: what is ordered of an executor, and what it tells."""
