"""Secrets: what is kept of them, and finding them in what must not hold them."""
