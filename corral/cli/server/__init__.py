"""Commands about the server of this machine."""
