"""The decorator API for functions and classes that run on the fleet; standard library until called."""
