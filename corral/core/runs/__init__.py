"""Runs: submitting, steering and removing them."""
