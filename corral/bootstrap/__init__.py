"""Builds a server from settings: the only place that names adapters and databases."""
