"""Models: loading them, and their forward passes."""
