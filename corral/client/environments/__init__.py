"""Requirements of a run, resolved into pins by uv."""
