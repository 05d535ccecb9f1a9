"""Corral rounds up the machines you have and trains models on them as if they were one."""

__version__ = "0.1.0"
