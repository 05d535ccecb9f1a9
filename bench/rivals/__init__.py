"""Programs that run in the rivals' own virtual environment; they must import nothing of Corral."""
