"""Workers as jobs of Slurm, over its command line, here or through a login node."""

from corral.adapters.executors.slurm.executor import SlurmExecutor
from corral.adapters.executors.slurm.models import SlurmOptions

__all__ = ["SlurmExecutor", "SlurmOptions"]
