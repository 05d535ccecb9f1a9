"""What the core needs of the outside world, as Protocols; the database is in `corral.store`."""
