"""What travels back to the server: records, checkpoints, outcomes."""
