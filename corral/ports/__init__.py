"""What the core needs of the world, as Protocols; each has a contract suite."""
