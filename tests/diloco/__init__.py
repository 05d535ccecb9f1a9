"""DiLoCo over a store: rounds, the outer step, compression, and what happens when replicas die."""
