"""The store on Postgres: for more than one server."""
