"""The store on SQLite and on Postgres: one set of statements, two engines."""
