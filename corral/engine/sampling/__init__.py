"""Sampling from the model that is being trained."""
