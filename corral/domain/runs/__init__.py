"""Runs: their records, states, reasons, retries and holds, and how they wait in the queue."""
