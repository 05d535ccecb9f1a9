"""The database: tables by noun over one small connection, for SQLite and Postgres. Rules are in `core`."""
