"""Functions that answer over HTTP: their paths, and the types of what they take."""
