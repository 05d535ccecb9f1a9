"""AdamW over fp32 numbers, whatever precision the model computes in."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor


class Optimizer:
    """Parameters in bf16 get fp32 copies here, since an update is often too small for bf16 to hold."""

    def __init__(
        self, parameters: Mapping[str, Tensor], *, beta1: float, beta2: float, weight_decay: float
    ) -> None:
        self._parameters = dict(parameters)
        self._masters = {
            name: p if p.dtype == torch.float32 else p.detach().float().clone()
            for name, p in self._parameters.items()
        }
        self._adam = torch.optim.AdamW(
            list(self._masters.values()),
            lr=0.0,
            betas=(beta1, beta2),
            eps=1e-8,
            weight_decay=weight_decay,
            fused=True,
        )

    def step(self, learning_rate: float, *, clip: float) -> Tensor:
        """One update from the gradients, which are then gone. Returns their norm before clipping.

        Gradients that are not finite change nothing. The device decides that, so the host does not wait.
        """
        for name, p in self._parameters.items():
            master = self._masters[name]
            if master is not p:
                master.grad = None if p.grad is None else p.grad.float()
        for group in self._adam.param_groups:
            group["lr"] = learning_rate
        norm = torch.nn.utils.clip_grad_norm_(list(self._masters.values()), clip or float("inf"))
        # What a gradient scaler would set: the fused step reads it.
        self._adam.found_inf = norm.isfinite().logical_not().float()  # type: ignore[attr-defined]
        self._adam.step()
        self.spread()
        self.forget()
        return norm

    @property
    def masters(self) -> Mapping[str, Tensor]:
        """The fp32 numbers. Who changes them calls `spread`."""
        return self._masters

    def spread(self) -> None:
        """What the model computes with is what the fp32 numbers say."""
        with torch.no_grad():
            for name, p in self._parameters.items():
                if self._masters[name] is not p:
                    p.copy_(self._masters[name])

    def forget(self) -> None:
        """Drop the gradients."""
        for tensors in (self._parameters, self._masters):
            for p in tensors.values():
                p.grad = None

    def save(self, path: Path) -> None:
        tensors: dict[str, Tensor] = {}
        for name, master in self._masters.items():
            if master is not self._parameters[name]:
                tensors[f"{name}#master"] = master
            for key, value in self._adam.state.get(master, {}).items():
                tensors[f"{name}#{key}"] = value
        save_file({key: value.detach().cpu().contiguous() for key, value in tensors.items()}, path)

    def load(self, path: Path) -> None:
        tensors = load_file(path)
        if strangers := {key.rpartition("#")[0] for key in tensors} - set(self._masters):
            raise ValueError(f"{path.name} holds the state of other parameters: {sorted(strangers)[0]}")
        for name, master in self._masters.items():
            state = {}
            for key in ("step", "exp_avg", "exp_avg_sq"):
                if (value := tensors.get(f"{name}#{key}")) is not None:
                    state[key] = value.to(master.device)
            # Nothing kept: it was saved before the first step, and what was here since must not stay.
            self._adam.state.pop(master, None)
            if state:
                self._adam.state[master] = state
            if (kept := tensors.get(f"{name}#master")) is not None:
                master.data.copy_(kept)
