"""Volumes: on the server, and as folders here."""
