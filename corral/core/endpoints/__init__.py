"""Endpoints: versions, and how many instances there are."""
