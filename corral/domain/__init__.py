"""Pure rules: states, leases, capabilities, ids and errors. No I/O, clock, environment or SDK."""
