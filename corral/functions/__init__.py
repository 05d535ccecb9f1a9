"""Decorated Python functions and classes that run on the fleet. Standard library only until called."""
