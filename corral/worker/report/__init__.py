"""What travels back to the server: records, checkpoints, outcomes. Nothing that touches the child."""
