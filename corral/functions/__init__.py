"""Decorated Python functions and classes that run on the fleet, as a program or an instance sees them.

Standard library only, but for `http_backend`; what the server and the worker do for them lies there.
"""
