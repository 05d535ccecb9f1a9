"""Blobs in a directory or a bucket, and log segments in a directory."""
