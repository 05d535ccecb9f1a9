"""The database: tables by noun over one small connection, for SQLite and Postgres; SQL alone, no rules."""
