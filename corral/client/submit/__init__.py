"""From a run file to a spec that can be submitted."""
