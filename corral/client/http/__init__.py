"""How requests reach the server: connections, errors, streams and trust."""
