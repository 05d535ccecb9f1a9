"""TLS: the installation's own authority, and the server's context, kept fresh while it runs."""
