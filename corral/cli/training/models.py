"""`corral models`: the models that are known by a short name."""

from __future__ import annotations

import json
from dataclasses import asdict

import typer

from corral.cli.display import render
from corral.cli.options import AsJson
from corral.recipes import models as listed


def models(as_json: AsJson = False) -> None:
    """List the models that are known by a short name. Any other causal model can be trained too."""
    found = list(listed.catalogue().values())
    if as_json:
        typer.echo(json.dumps([asdict(model) for model in found], indent=2))
        return
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
    render.show_table(columns, rows, empty="no models")
    render.note("any other causal language model: its Hugging Face id, or a folder with safetensors")


def _count(params: int) -> str:
    """`1.2M`, `4.0B`."""
    return f"{params / 1e9:.1f}B" if params >= 1e9 else f"{params / 1e6:.1f}M"
