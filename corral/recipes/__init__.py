"""What a training run may ask for, and what it will need: standard library only, shared by all sides."""
