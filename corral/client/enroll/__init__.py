"""How this machine becomes a host of a server, and who it is then."""
