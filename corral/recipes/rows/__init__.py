"""Rows of training data: what they may be and how files of them are read. Submit and the engine share it."""
