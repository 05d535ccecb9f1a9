"""Sampling from the model that is being trained: batches, cache, drawing, rollouts; no training."""
