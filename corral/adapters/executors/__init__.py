"""Executors: each brings workers up on one kind of cluster, behind `ports/executor.py`."""
