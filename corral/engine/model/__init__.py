"""Models: loading them, their adapters and forward passes; no optimiser, no sampling loop."""
