"""What travels with a function: which modules are its own, what is installed or required, and the archive."""
