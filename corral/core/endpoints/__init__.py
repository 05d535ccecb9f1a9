"""Endpoints: their versions, and how many instances serve them; not which instance runs which call."""
