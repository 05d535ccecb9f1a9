"""Executors: each brings workers up on one kind of cluster, and takes them away."""
