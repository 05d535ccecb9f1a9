"""A child process: how it is started, supervised and judged. Nothing of calls or uploads."""
