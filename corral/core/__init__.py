"""Use cases: plain functions over a transaction; one file each."""
