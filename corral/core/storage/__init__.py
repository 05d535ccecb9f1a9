"""What is stored: collecting, checking and limiting it."""
