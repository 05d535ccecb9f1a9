"""What a run tells while it goes on, and leaves when it ends."""
