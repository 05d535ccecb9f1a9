"""Manifests: read from a file, resolved, and applied."""
