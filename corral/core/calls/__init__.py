"""Calls: accepting them, assigning them to instances, keeping one outcome of each; not the instances."""
