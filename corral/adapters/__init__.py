"""What talks to the outside (disk, TLS, webhooks, clock), behind ports; none imports another."""
