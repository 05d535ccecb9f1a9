"""The model card: what an artifact is, what made it, how well it did and how to load it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from corral.recipes import models as listed


@dataclass(frozen=True, slots=True)
class ModelCard:
    """What is known; what is not is left out. `data` is a digest."""

    name: str
    base: str
    licence: str | None
    recipe: str
    adapter: bool
    settings: Mapping[str, Any]
    metrics: Mapping[str, str] = field(default_factory=dict)
    data: str | None = None
    revision: str | None = None
    run: str | None = None


def write(folder: Path, card: ModelCard) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "README.md").write_text(render(card), "utf-8")


def render(card: ModelCard) -> str:
    kind = "A LoRA adapter for" if card.adapter else "A fine-tuned copy of"
    return "\n".join(
        [
            *_head(card),
            f"# {card.name}",
            "",
            f"{kind} `{card.base}`, made by Corral with the recipe `{card.recipe}`.",
            "",
            *_origin(card),
            *_measured(card),
            "## Load it",
            "",
            "In the folder of this file:",
            "",
            "```python",
            *_loading(card),
            "```",
            "",
            "## Settings in effect",
            "",
            "```json",
            json.dumps(dict(card.settings), indent=2),
            "```",
            "",
            "## Limits",
            "",
            "It knows what its base knows and what its training taught it, faults included. It was measured"
            " on nothing but what is listed here, and by nobody for safety."
            + (f" The licence of the base, {card.licence}, applies." if card.licence else _UNKNOWN_LICENCE),
            "",
        ]
    )


_UNKNOWN_LICENCE = " The licence of the base applies; Corral does not know it."


def _head(card: ModelCard) -> list[str]:
    """What the hub reads. It takes names of licences that it knows, and `other` with a name."""
    facts = listed.facts(card.base)
    head = {"library_name": "peft" if card.adapter else "transformers"}
    # Models that come with Corral are not on the hub: the name would lead nowhere, or to another model.
    if facts is None or facts.hf:
        head = {"base_model": facts.hf if facts is not None and facts.hf else card.base, **head}
    if card.licence and " " in card.licence:
        head |= {"license": "other", "license_name": card.licence}
    elif card.licence:
        head["license"] = card.licence.lower()
    # A string of JSON is one of YAML too.
    return ["---", *(f"{key}: {json.dumps(value)}" for key, value in head.items()), "---", ""]


def _origin(card: ModelCard) -> list[str]:
    about = {"base revision": card.revision, "data (SHA-256)": card.data, "run": card.run}
    known = [f"- {key}: `{value}`" for key, value in about.items() if value]
    return [*known, ""] if known else []


def _measured(card: ModelCard) -> list[str]:
    if not card.metrics:
        return []
    rows = [f"| {_cell(name)} | {_cell(value)} |" for name, value in card.metrics.items()]
    return ["## Measured", "", "| what | value |", "|---|---|", *rows, ""]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _loading(card: ModelCard) -> list[str]:
    if not card.adapter:
        return [
            "from transformers import AutoModelForCausalLM, AutoTokenizer",
            "",
            'model = AutoModelForCausalLM.from_pretrained("model")',
            'tokenizer = AutoTokenizer.from_pretrained("model")',
        ]
    facts = listed.facts(card.base)
    # What the hub does not have, or has with other weights, comes from Corral itself.
    if facts is not None and facts.source in ("builtin", "package"):
        given = ["from corral.train import load_model", "", f'base = load_model("{facts.id}").model']
    else:
        name = facts.hf if facts is not None and facts.hf else card.base
        pinned = f", revision={card.revision!r}" if card.revision else ""
        given = [
            "from transformers import AutoModelForCausalLM",
            "",
            f"base = AutoModelForCausalLM.from_pretrained({name!r}{pinned})",
        ]
    return ["from peft import PeftModel", *given, 'model = PeftModel.from_pretrained(base, "adapter")']
