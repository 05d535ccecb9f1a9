"""Hosts: what they have, and what an operator lets them take."""
