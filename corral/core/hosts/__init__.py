"""Hosts: joining, declaring, draining, and setting aside those that fail."""
