"""Trains and samples language models; runs as a child of the worker, alone, or as a library."""
