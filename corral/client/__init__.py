"""The SDK; the only way the CLI, the worker and functions reach the server."""
