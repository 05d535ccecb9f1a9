"""`corral models`: the models that are known by a short name."""

from __future__ import annotations

from dataclasses import asdict

from corral.cli.display import render
from corral.cli.options import AsJson
from corral.recipes import models as listed


def models(as_json: AsJson = False) -> None:
    """List the models that are known by a short name. Any other causal model can be trained too."""
    found = list(listed.catalogue().values())
    rows = [
        (
            model.id,
            _count(model.params),
            model.context,
            model.thinking,
            model.licence,
            {"builtin": "built in", "package": "a Python package"}.get(model.source) or model.hf,
        )
        for model in found
    ]
    columns = ("MODEL", "PARAMETERS", "CONTEXT", "THINKING", "LICENCE", "FROM")
    footer = "any other causal language model: its Hugging Face id, or a folder with safetensors"
    items = [asdict(model) for model in found]
    render.show_list(items, columns, rows, as_json=as_json, empty="no models", footer=footer)


def _count(params: int) -> str:
    """`1.2M`, `4.0B`."""
    return f"{params / 1e9:.1f}B" if params >= 1e9 else f"{params / 1e6:.1f}M"
