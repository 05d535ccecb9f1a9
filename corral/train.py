"""What a training loop of your own is written with: `from corral.train import Engine, losses`.

This loads torch and transformers, so `import corral` does not load it.
"""

from corral.engine.data.chat import RenderedSequence, Renderer
from corral.engine.data.sequences import Completion, Example, SamplingParams, SamplingRequest
from corral.engine.engine import Engine, Options, Step
from corral.engine.environments.process import EnvironmentProcess
from corral.engine.errors import EngineError
from corral.engine.model.load import LoadedModel
from corral.engine.model.load import load as load_model
from corral.engine.sampling.rollouts import Episode, Rollouts
from corral.engine.training import advantages, losses
from corral.recipes.train import parse as parse_train
from corral.recipes.train_tables import Grpo, Lora, Train

__all__ = [
    "Completion",
    "Engine",
    "EngineError",
    "EnvironmentProcess",
    "Episode",
    "Example",
    "Grpo",
    "LoadedModel",
    "Lora",
    "Options",
    "RenderedSequence",
    "Renderer",
    "Rollouts",
    "SamplingParams",
    "SamplingRequest",
    "Step",
    "Train",
    "advantages",
    "load_model",
    "losses",
    "parse_train",
]
