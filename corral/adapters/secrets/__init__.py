"""Secrets, encrypted with a key beside the database: the key file, and the cipher."""
