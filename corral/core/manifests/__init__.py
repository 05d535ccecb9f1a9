"""Manifests: what one would change, and applying it."""
