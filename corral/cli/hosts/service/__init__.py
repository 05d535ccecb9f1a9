"""Files that make a worker start with its machine."""
