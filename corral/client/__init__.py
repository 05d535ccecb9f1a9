"""The SDK: the only way in which the CLI, the worker and functions reach the server; prints nothing."""
