"""Trains and samples language models, as a child of the worker or a library; the only importer of torch."""
