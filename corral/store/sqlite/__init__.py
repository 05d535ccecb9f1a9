"""The store on SQLite: one server, one file, one writer."""
