"""What the core needs of the world, as Protocols with a contract suite each; no implementations."""
