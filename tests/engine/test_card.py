"""The model card: true, readable for the hub, and its code runs."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from corral.engine.model import adapters
from corral.engine.model import load as models
from corral.engine.reports import model_card
from corral.engine.reports.model_card import ModelCard
from corral.recipes.train_tables import Lora

ABOUT = ModelCard(
    name="sums",
    base="corral/tiny",
    licence="Apache-2.0",
    recipe="sft",
    adapter=True,
    settings={"recipe": "sft", "lora": {"rank": 4}},
    metrics={"eval_loss after 40 steps": "0.1 [0.05, 0.2]", "a|b": "1\n2"},
    data="ab" * 32,
    run="r-1",
)


def head(text: str) -> dict[str, Any]:
    """Each value is JSON, which is YAML too."""
    lines = (line.split(": ", 1) for line in text.split("---\n")[1].splitlines())
    return {key: json.loads(value) for key, value in lines}


def code(text: str, language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", text, re.DOTALL)
    assert found is not None
    return found[1]


def test_a_card_says_what_was_made_from_what_and_how_well_it_did() -> None:
    text = model_card.render(ABOUT)

    # No name of the hub's: it has no such model.
    assert head(text) == {"library_name": "peft", "license": "apache-2.0"}
    assert "from_pretrained('corral/tiny'" not in text.replace('"', "'")
    assert "A LoRA adapter for `corral/tiny`, made by Corral with the recipe `sft`." in text
    assert f"- data (SHA-256): `{'ab' * 32}`" in text
    assert "- run: `r-1`" in text
    assert "| eval_loss after 40 steps | 0.1 [0.05, 0.2] |" in text
    assert r"| a\|b | 1 2 |" in text
    assert json.loads(code(text, "json")) == ABOUT.settings
    assert "## Limits" in text
    assert "Apache-2.0, applies" in text


def test_what_is_not_known_is_left_out() -> None:
    bare = replace(ABOUT, licence=None, metrics={}, data=None, run=None)
    text = model_card.render(bare)

    assert "license" not in head(text)
    assert "None" not in text
    assert "Measured" not in text
    assert "Corral does not know it" in text


def test_a_licence_without_a_name_on_the_hub_is_other() -> None:
    said = head(model_card.render(replace(ABOUT, base="llama-3.2-1b", licence="Llama 3.2 Community")))
    assert (said["license"], said["license_name"]) == ("other", "Llama 3.2 Community")
    assert said["base_model"] == "meta-llama/Llama-3.2-1B-Instruct"


def test_the_code_to_load_it_pins_the_revision_of_the_base() -> None:
    lines = code(model_card.render(replace(ABOUT, base="o/m", revision="c0ffee")), "python")
    assert "from_pretrained('o/m', revision='c0ffee')" in lines


@pytest.mark.parametrize("lora", [Lora(rank=2), None], ids=["adapter", "model"])
def test_the_code_on_the_card_runs(
    lora: Lora | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = models.load("corral/tiny")
    adapters.attach(loaded.model, lora)
    folder = tmp_path / ("model" if lora is None else "adapter")
    adapters.save(loaded.model, folder)
    loaded.tokenizer.save_pretrained(folder)
    model_card.write(tmp_path, replace(ABOUT, adapter=lora is not None))
    monkeypatch.chdir(tmp_path)

    names: dict[str, Any] = {}
    exec(code((tmp_path / "README.md").read_text(), "python"), names)

    assert type(names["model"]).__name__ == ("Qwen3ForCausalLM" if lora is None else "PeftModelForCausalLM")
