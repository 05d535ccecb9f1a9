"""Keeping secret values out of what is stored and printed: the forms they may have, and how to find them."""
