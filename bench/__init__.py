"""What Corral costs, beside its rivals, on the machine at hand. Nothing here is asserted, only reported."""
