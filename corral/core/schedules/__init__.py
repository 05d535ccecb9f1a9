"""Runs and calls that are made by the clock."""
