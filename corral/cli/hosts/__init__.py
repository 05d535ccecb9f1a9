"""Commands about hosts."""
