"""Runs programs on a disk that forgets, at a power cut, whatever was not synced."""

from powercut.disk import PowerCutDisk

__all__ = ["PowerCutDisk"]
