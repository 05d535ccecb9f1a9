"""Trains and samples language models, as a child of the worker, alone or as a library."""
