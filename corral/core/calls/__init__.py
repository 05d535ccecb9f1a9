"""Calls: accepting them, giving them to instances, keeping one outcome of each."""
