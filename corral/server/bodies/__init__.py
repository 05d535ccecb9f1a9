"""Bodies of requests: how they are read, how slow they may be, and how much they may hold."""
