"""Loading a model: what is taken, and what is refused before any of it is used."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from corral.engine.errors import ModelProblem
from corral.engine.model import load as models
from corral.engine.model import tiny

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model as a folder, as `save_pretrained` writes one."""
    folder = tmp_path_factory.mktemp("model")
    model, tokenizer = tiny.build()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """One that a test may spoil."""
    return Path(shutil.copytree(saved, tmp_path / "model"))


def change(folder: Path, **keys: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **keys}))


def logits(loaded: models.LoadedModel) -> torch.Tensor:
    with torch.no_grad():
        said: torch.Tensor = loaded.model(torch.tensor([[1, 2, 3]])).logits
    return said


def test_the_built_in_model_needs_nothing() -> None:
    loaded = models.load("corral/tiny")

    assert loaded.facts is not None
    assert (loaded.ref, loaded.revision, loaded.facts.id) == ("corral/tiny", None, "corral/tiny")
    assert len(loaded.digest) == 64
    assert not loaded.model.training
    assert loaded.model.name_or_path == "corral/tiny"


def test_weights_come_in_the_type_that_is_asked_for_and_the_digest_is_the_same() -> None:
    half = models.load("corral/tiny", dtype=torch.bfloat16)
    assert half.model.dtype == torch.bfloat16
    assert half.digest == models.load("corral/tiny").digest


def test_a_folder_is_loaded_as_it_was_saved(saved: Path) -> None:
    loaded = models.load(str(saved))

    assert torch.equal(logits(loaded), logits(models.load("corral/tiny")))
    assert loaded.tokenizer.encode("hé") == [104, 195, 169]
    assert loaded.facts is not None
    assert (loaded.facts.params, loaded.facts.family) == (1_052_032, "qwen3")
    assert loaded.digest == models.digest(saved)


def test_the_digest_is_of_names_and_contents(folder: Path) -> None:
    before = models.digest(folder)
    moved = folder.rename(folder.with_name("elsewhere"))
    assert models.digest(moved) == before
    (moved / "added").touch()
    assert models.digest(moved) != before


def test_the_digest_trusts_the_name_that_the_hubs_cache_gave_a_large_file(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "plain").mkdir()
    digest = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
    (tmp_path / "blobs" / digest).write_text("hello")
    (tmp_path / "snapshot" / "a").symlink_to(tmp_path / "blobs" / digest)
    (tmp_path / "plain" / "a").write_text("hello")

    assert models.digest(tmp_path / "snapshot") == models.digest(tmp_path / "plain")


# -- what is refused ------------------------------------------------------------------------------------


def remove_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def only_pickled(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    remove_weights(folder)


def drop_a_weight(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def cut_the_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:100_000])


def shrink_the_vocabulary(folder: Path) -> None:
    change(folder, vocab_size=200, pad_token_id=0, eos_token_id=0)
    tensors = load_file(folder / "model.safetensors")
    for name in ("lm_head.weight", "model.embed_tokens.weight"):
        tensors[name] = tensors[name][:200].clone()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def without_tokenizer(folder: Path) -> None:
    for path in folder.glob("*token*"):
        path.unlink()


def only_an_adapter(folder: Path) -> None:
    (folder / "config.json").rename(folder / "adapter_config.json")


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "nothing there": (shutil.rmtree, "no such folder"),
    "no config": (lambda folder: (folder / "config.json").unlink(), "no config.json"),
    "broken config": (lambda folder: (folder / "config.json").write_text("{"), "not JSON"),
    "config is a list": (lambda folder: (folder / "config.json").write_text("[]"), "not a table"),
    "an adapter": (only_an_adapter, "is an adapter, not a model"),
    "pickled weights": (only_pickled, "only pytorch_model.bin, which can run code"),
    "no weights": (remove_weights, "no weights in safetensors"),
    "a weight is missing": (drop_a_weight, "lack 1 weights, such as lm_head.weight"),
    "cut off": (cut_the_weights, "cannot be loaded"),
    "unknown type": (lambda folder: change(folder, model_type="qwen99"), "'qwen99', which this transformers"),
    "own code": (
        lambda folder: change(folder, model_type="mine", auto_map={"AutoModelForCausalLM": "own.Own"}),
        "needs code of its own",
    ),
    "a classifier": (
        lambda folder: change(folder, architectures=["Qwen3ForSequenceClassification"]),
        "is Qwen3ForSequenceClassification, not a causal language model",
    ),
    "an encoder": (
        lambda folder: change(folder, model_type="t5", architectures=["T5ForConditionalGeneration"]),
        "is T5ForConditionalGeneration, not a causal",
    ),
    "quantised": (
        lambda folder: change(folder, quantization_config={"quant_method": "gptq", "bits": 4}),
        r"quantised \(gptq\)",
    ),
    "a shape that is none": (
        lambda folder: change(folder, hidden_size="wide"),
        "cannot be loaded: .*hidden_size",
    ),
    "no tokenizer": (without_tokenizer, "has no tokenizer"),
    "a tokenizer of another model": (shrink_the_vocabulary, "has 264 tokens, its weights know 200"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_folder_that_cannot_be_trained_is_refused_with_the_reason(folder: Path, case: str) -> None:
    spoil, reason = REFUSED[case]
    spoil(folder)

    with pytest.raises(ModelProblem, match=reason) as refused:
        models.load(str(folder))

    assert str(folder) in str(refused.value)
    assert refused.value.hint or "JSON" in reason or "table" in reason


def test_code_that_lies_beside_a_known_architecture_is_not_run(folder: Path) -> None:
    ran = folder / "ran"
    for name in ("modeling_own.py", "configuration_own.py", "tokenization_own.py"):
        (folder / name).write_text(f"open({str(ran)!r}, 'w')\nclass Own: pass\n")
    change(
        folder, auto_map={"AutoConfig": "configuration_own.Own", "AutoModelForCausalLM": "modeling_own.Own"}
    )

    models.load(str(folder))

    assert not ran.exists()


# -- the hub --------------------------------------------------------------------------------------------


ANSWERS = {"gated": (403, "GatedRepo"), "absent": (404, "RepoNotFound"), "branch": (404, "RevisionNotFound")}


class Hub(BaseHTTPRequestHandler):
    """Says no as the hub does."""

    def do_GET(self) -> None:
        kind = next((kind for kind in ANSWERS if kind in self.path), None)
        status, code = ANSWERS[kind] if kind else (500, "")
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", "no")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


ASK = """
import json, sys
from pathlib import Path
from corral.engine.model import load as models
for ref, revision in json.loads(sys.argv[1]):
    try:
        print(json.dumps(models.load(ref, revision=revision, cache_dir=Path(sys.argv[2])).revision))
    except models.ModelProblem as problem:
        print(json.dumps([str(problem), problem.hint]))
"""


def ask(refs: list[tuple[str, str | None]], cache: Path, **environment: str) -> list[Any]:
    """In a process of its own: the hub's client reads the environment when it is imported."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    argv = [sys.executable, "-c", ASK, json.dumps(refs), str(cache)]
    done = subprocess.run(argv, env={**env, **environment}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_what_the_hub_refuses_is_explained(hub: str, tmp_path: Path) -> None:
    refs = [("o/gated", None), ("o/absent", None), ("o/m", "branch"), ("a b", None)]
    gated, absent, branch, odd = ask(refs, tmp_path, HF_ENDPOINT=hub)

    assert gated[0] == "model 'o/gated' is gated: its owner must let you in"
    assert "HF_TOKEN" in gated[1]
    assert absent[0] == "model 'o/absent' is not on the hub, or is private"
    assert branch[0] == "model 'o/m' has no revision 'branch'"
    assert absent[1].startswith("Check its name")
    assert odd[0] == "'a b' is neither a folder nor a name of a model"


def test_without_a_network_a_model_that_is_not_here_is_said_to_be(tmp_path: Path) -> None:
    refs: list[tuple[str, str | None]] = [
        ("o/m", None),
        ("qwen3-0.6b", None),
        ("corral/tiny", None),
        ("smollm2-135", None),
    ]
    [there, known, builtin, slip] = ask(refs, tmp_path, HF_HUB_OFFLINE="1")

    assert there[0] == "model 'o/m' is not on this machine, and the hub cannot be reached"
    assert "name a folder" in there[1]
    assert known[0].startswith("model 'Qwen/Qwen3-0.6B' is not on this machine")
    assert known[1].startswith("Give this machine")
    assert slip[1].startswith("Did you mean 'smollm2-135m'? ")
    assert builtin is None


def test_a_model_in_the_hubs_cache_is_loaded_by_its_commit(saved: Path, tmp_path: Path) -> None:
    repository = tmp_path / "hub" / "models--o--m"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT)
    shutil.copytree(saved, repository / "snapshots" / COMMIT)
    assert ask([("o/m", None)], tmp_path, HF_HUB_OFFLINE="1") == [COMMIT]

    loaded = models.load("o/m", revision=COMMIT, cache_dir=tmp_path)

    assert (loaded.ref, loaded.revision) == ("o/m", COMMIT)
    assert torch.equal(logits(loaded), logits(models.load("corral/tiny")))
