"""Blobs and log segments in a directory."""
