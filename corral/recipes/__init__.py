"""What a training run may ask for, and a forecast of what it will need; standard library only."""
