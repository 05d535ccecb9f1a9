"""Executors: what brings workers up on a cluster, a folder for each; none imports another."""
