"""Bringing workers up for runs through executors: intent first, one cohort per intent, and nothing left."""
