"""The worker's side of an instance of a function: its calls, its socket, its payloads and its limits."""
