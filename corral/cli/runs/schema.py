"""`corral schema`: the JSON Schema of a run file."""

from __future__ import annotations

from corral.cli.display import render
from corral.wire.spec.run_file import RunFile


def schema() -> None:
    """Print the JSON Schema of a run file, for editors."""
    whole = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **RunFile.model_json_schema(),
        "title": "Corral run file",
    }
    render.show_json(whole)
