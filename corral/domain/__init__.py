"""Values, states, reasons, ids and errors: pure rules, without I/O, clock, environment or any SDK."""
