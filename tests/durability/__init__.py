"""What survives a power cut; a package so that `powercut` beside it can be imported."""
