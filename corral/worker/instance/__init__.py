"""The worker's side of an instance of an endpoint."""
