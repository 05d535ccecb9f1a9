"""Hosts of a server, and how this machine becomes one."""
