"""Claims runs, prepares and supervises their child processes, reports; knows nothing of torch."""
