"""The model as it was before training: what a KL term and a comparison need, without a second copy of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from corral.engine.engine import Engine


@contextmanager
def without_adapter(engine: Engine) -> Iterator[None]:
    """Inside, the adapter adds nothing: with B at 0 the product of its two matrices is 0."""
    outer = {name: p for name, p in engine.loaded.model.named_parameters() if ".lora_B." in name}
    kept = {name: p.detach().clone() for name, p in outer.items()}
    with torch.no_grad():
        for p in outer.values():
            p.zero_()
    engine.weights_changed()
    try:
        yield
    finally:
        with torch.no_grad():
            for name, p in outer.items():
                p.copy_(kept[name])
        engine.weights_changed()
