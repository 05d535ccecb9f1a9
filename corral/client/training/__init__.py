"""What a training run is made of on this machine, and what it will need."""
