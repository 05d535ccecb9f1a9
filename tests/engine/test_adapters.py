"""Adapters: what trains, what is saved, and whose adapter is taken."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from corral.engine.errors import ModelProblem
from corral.engine.model import adapters, seeded_random
from corral.engine.model import load as models
from corral.recipes import models as listed
from corral.recipes.train_tables import Lora

LORA = Lora(rank=4)
TOKENS = torch.tensor([[257, 49, 43, 50, 61, 258, 10]])


def tiny(dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    return models.load("corral/tiny", dtype=dtype).model


def tied() -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=264,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return LlamaForCausalLM(config).eval()


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        said: torch.Tensor = model(TOKENS).logits
    return said


def teach(model: PreTrainedModel, seed: int = 7) -> None:
    """As if it had been trained: B is zero in a new adapter, which then does nothing."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lora_B." in name:
                parameter.copy_(seeded_random.normal(name, seed, parameter.shape, 0.05))


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    model = tiny()
    adapters.attach(model, LORA, seed=3)
    teach(model)
    adapters.save(model, tmp_path / "trained", base="corral/tiny")
    return tmp_path / "trained"


# -- what trains ----------------------------------------------------------------------------------------


def test_all_linear_layers_train_and_nothing_else() -> None:
    model = tiny()
    names = adapters.attach(model, LORA)

    layers = {name.split(".")[-4] for name in names}
    assert layers == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    assert len(names) == 4 * 7 * 2
    facts = listed.facts("corral/tiny")
    assert facts is not None
    named = dict(model.named_parameters())
    assert sum(named[name].numel() for name in names) == listed.lora_params(facts, LORA.rank)
    assert {name for name, p in named.items() if p.requires_grad} == set(names)


def test_without_an_adapter_every_weight_trains() -> None:
    model = tiny()
    names = adapters.attach(model, None)
    assert sum(dict(model.named_parameters())[name].numel() for name in names) == 1_052_032
    assert all(p.requires_grad for p in model.parameters())


def test_a_new_adapter_changes_nothing_yet() -> None:
    model = tiny()
    before = logits(model)
    adapters.attach(model, LORA)
    assert torch.equal(logits(model), before)


def test_every_parameter_of_an_adapter_gets_a_gradient_en_d07() -> None:
    """EN-D07."""
    model = tiny()
    names = adapters.attach(model, LORA)
    teach(model)

    model(TOKENS, labels=TOKENS).loss.backward()

    named = dict(model.named_parameters())
    still = [name for name in names if named[name].grad is None or not named[name].grad.any()]
    assert still == []


def test_an_adapter_is_fp32_over_a_bf16_model() -> None:
    model = tiny(torch.bfloat16)
    names = adapters.attach(model, LORA)
    named = dict(model.named_parameters())
    assert {named[name].dtype for name in names} == {torch.float32}
    assert {p.dtype for name, p in named.items() if name not in names} == {torch.bfloat16}
    assert logits(model).isfinite().all()


def test_an_adapter_depends_on_the_seed_and_on_nothing_else() -> None:
    drawn = []
    for seed in (1, 1, 2):
        torch.rand(3)
        model = tiny()
        before = torch.random.get_rng_state()
        adapters.attach(model, LORA, seed=seed)
        assert torch.equal(torch.random.get_rng_state(), before)
        drawn.append({name: p for name, p in model.named_parameters() if ".lora_A." in name})

    assert all(torch.equal(drawn[0][name], drawn[1][name]) for name in drawn[0])
    assert not any(torch.equal(drawn[0][name], drawn[2][name]) for name in drawn[0])


def test_an_adapter_is_drawn_as_widely_as_peft_draws_it() -> None:
    model, theirs = tiny(), tiny()
    adapters.attach(model, Lora(rank=64))
    get_peft_model(theirs, LoraConfig(r=64, target_modules="all-linear", task_type="CAUSAL_LM"))

    spread = [
        [p.std().item() for name, p in one.named_parameters() if ".lora_A." in name]
        for one in (model, theirs)
    ]
    assert spread[0] == pytest.approx(spread[1], rel=0.1)


@pytest.mark.parametrize(("rslora", "scale"), [(True, 8 / 2), (False, 8 / 4)])
def test_the_scale_is_alpha_over_the_root_of_the_rank(rslora: bool, scale: float) -> None:
    model = tiny()
    adapters.attach(model, Lora(rank=4, rslora=rslora))
    assert model.get_submodule("model.layers.0.mlp.up_proj").scaling["default"] == scale


def test_a_target_that_the_model_does_not_have_is_named() -> None:
    """peft trains the others and says nothing."""
    with pytest.raises(ModelProblem, match="no layer 'q_prj'") as refused:
        adapters.attach(tiny(), Lora(targets=("up_proj", "q_prj")))
    assert refused.value.hint == "Did you mean 'q_proj'?"


# -- what is saved --------------------------------------------------------------------------------------


def test_stock_peft_loads_what_is_saved_and_says_the_same(trained: Path) -> None:
    ours = tiny()
    adapters.attach(ours, LORA, seed=3)
    teach(ours)

    theirs = PeftModel.from_pretrained(tiny(), trained)

    assert torch.equal(logits(theirs), logits(ours))
    assert not torch.equal(logits(ours), logits(tiny()))
    config = theirs.peft_config["default"]
    assert (config.r, config.lora_alpha, config.use_rslora) == (4, 8, True)
    assert config.base_model_name_or_path == "corral/tiny"


def test_a_saved_adapter_is_loaded_to_the_same_bits(trained: Path) -> None:
    model = tiny()
    adapters.attach(model, LORA, seed=9)
    adapters.load_into(model, trained)

    right = tiny()
    adapters.attach(right, LORA, seed=3)
    teach(right)
    assert torch.equal(logits(model), logits(right))


def test_an_adapter_names_its_model_by_itself(tmp_path: Path) -> None:
    model = tiny()
    adapters.attach(model, LORA)
    adapters.save(model, tmp_path)
    assert (
        json.loads((tmp_path / "adapter_config.json").read_text())["base_model_name_or_path"] == "corral/tiny"
    )


@pytest.mark.parametrize("make", [tiny, tied], ids=["untied head", "tied head"])
def test_a_fully_trained_model_is_saved_as_a_model(make: Callable[[], Any], tmp_path: Path) -> None:
    model = make()
    adapters.attach(model, None)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.add_(seeded_random.normal(name, 1, parameter.shape, 0.01))
    adapters.save(model, tmp_path)

    assert torch.equal(logits(AutoModelForCausalLM.from_pretrained(tmp_path)), logits(model))
    again = make()
    adapters.load_into(again, tmp_path)
    assert torch.equal(logits(again), logits(model))
    assert not (tmp_path / "adapter_config.json").exists()


def test_a_whole_model_that_lacks_its_head_is_refused(tmp_path: Path) -> None:
    adapters.save(tiny(), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, tmp_path / "model.safetensors")

    with pytest.raises(ModelProblem, match=r"lm_head.weight is in the model and not there"):
        adapters.load_into(tiny(), tmp_path)


# -- where training starts ------------------------------------------------------------------------------


def test_training_goes_on_from_a_saved_adapter(trained: Path) -> None:
    model = tiny()
    names = adapters.attach(model, LORA, seed=5, start_from=trained)

    right = PeftModel.from_pretrained(tiny(), trained)
    assert torch.equal(logits(model), logits(right))
    named = dict(model.named_parameters())
    assert all(named[name].requires_grad for name in names)


def test_an_adapter_that_peft_wrote_is_taken(tmp_path: Path) -> None:
    config = LoraConfig(r=4, lora_alpha=16, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    theirs = get_peft_model(tiny(), config)
    teach(theirs)
    theirs.save_pretrained(tmp_path, save_embedding_layers=False)

    model = tiny()
    adapters.attach(
        model, Lora(rank=4, alpha=16, rslora=False, targets=("q_proj", "v_proj")), start_from=tmp_path
    )

    assert torch.equal(logits(model), logits(theirs.eval()))


def settings(folder: Path, **keys: Any) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **keys}))


def weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / "adapter_model.safetensors")
    change(tensors)
    save_file(tensors, folder / "adapter_model.safetensors")


def zero(tensors: dict[str, torch.Tensor]) -> None:
    for name, tensor in tensors.items():
        if "lora_B" in name:
            tensor.zero_()


def spoil(tensors: dict[str, torch.Tensor]) -> None:
    next(iter(tensors.values()))[0, 0] = float("nan")


def widen(tensors: dict[str, torch.Tensor]) -> None:
    for name, tensor in tensors.items():
        tensors[name] = torch.cat([tensor, tensor], 1).contiguous()


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "another listed model": (
        lambda folder: settings(folder, base_model_name_or_path="Qwen/Qwen3-0.6B"),
        "is of 'Qwen/Qwen3-0.6B', and the model is 'corral/tiny'",
    ),
    "other shapes": (lambda folder: weights(folder, widen), r"of another model: .* is \[4, "),
    "other layers": (
        lambda folder: weights(folder, lambda tensors: tensors.pop(next(iter(tensors)))),
        r"of another model or of other layers: .* in the model and not there \(1 differ\)",
    ),
    "another rank": (lambda folder: settings(folder, r=8), "has rank = 8, .* asked for is rank = 4"),
    "another scale": (lambda folder: settings(folder, lora_alpha=4), "has rank = 4, alpha = 4"),
    "without rsLoRA": (lambda folder: settings(folder, use_rslora=False), "rslora = false; asked for"),
    "never trained": (lambda folder: weights(folder, zero), "never trained: its B matrices are zero"),
    "not finite": (lambda folder: weights(folder, spoil), "not all finite"),
    "no config": (lambda folder: (folder / "adapter_config.json").unlink(), "adapter_config.json is missing"),
    "no weights": (lambda folder: (folder / "adapter_model.safetensors").unlink(), "safetensors is missing"),
    "broken config": (lambda folder: (folder / "adapter_config.json").write_text("{"), "not JSON"),
    "broken weights": (
        lambda folder: (folder / "adapter_model.safetensors").write_bytes(b"x" * 100),
        "cannot be read",
    ),
    "another method": (lambda folder: settings(folder, peft_type="IA3"), "is IA3, not LORA"),
    "DoRA": (lambda folder: settings(folder, use_dora=True), "has use_dora"),
    "PiSSA": (lambda folder: settings(folder, init_lora_weights="pissa"), r"a changed model \(pissa\)"),
    "biases": (lambda folder: settings(folder, bias="all"), "has trained biases"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_adapter_that_does_not_belong_is_refused_with_the_reason(trained: Path, case: str) -> None:
    change, reason = REFUSED[case]
    change(trained)

    with pytest.raises(ModelProblem, match=reason) as refused:
        adapters.attach(tiny(), LORA, start_from=trained)

    assert str(trained) in str(refused.value)


def test_an_adapter_of_a_model_of_another_shape_is_refused(trained: Path) -> None:
    with pytest.raises(ModelProblem, match="of another model"):
        adapters.attach(tied(), LORA, start_from=trained)


def test_a_full_training_cannot_start_from_an_adapter(trained: Path) -> None:
    with pytest.raises(ModelProblem, match="cannot be continued by full training"):
        adapters.attach(tiny(), None, start_from=trained)
