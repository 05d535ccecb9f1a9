"""Model folders of random weights, with a tokenizer that any model takes."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from bench.forecast_shapes import LETTERS, Shape
from corral.engine.model.bytes_tokenizer import CHAT_TEMPLATE, END_OF_TURN, PAD, SPECIAL

# How the byte-level pre-tokenizer writes a space.
_SPACE = "\u0120"
# Numbers that are drawn once; a weight is a stretch of them. The speed of a product does not depend on it.
_DRAWN = 1 << 22


def write(folder: Path, shape: Shape) -> None:
    """What `save_pretrained` would leave of such a model and its tokenizer."""
    folder.mkdir(parents=True)
    tokenizer = _tokenizer(shape.vocab)
    ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    (folder / "config.json").write_text(json.dumps({**shape.config(), **ids}, indent=1), "utf-8")
    tokenizer.save_pretrained(folder)
    about = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
    # By its own file alone: otherwise transformers takes the class that belongs to the kind of model.
    named = json.dumps({**about, "tokenizer_class": "PreTrainedTokenizerFast"}, indent=1)
    (folder / "tokenizer_config.json").write_text(named, "utf-8")
    with torch.device("meta"):
        made = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    draw = torch.Generator().manual_seed(0)
    pool = torch.empty(_DRAWN).normal_(0, 0.02, generator=draw).bfloat16()
    names = [name for name in made.state_dict() if not (shape.tied and name == "lm_head.weight")]
    weights = {name: _weight(name, made.state_dict()[name].shape, pool) for name in names}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def _weight(name: str, shape: torch.Size, pool: Tensor) -> Tensor:
    if "norm" in name:
        return torch.ones(shape, dtype=torch.bfloat16)
    # Another beginning for each, so that no two layers are alike.
    start, count = sum(name.encode()) * 7919 % _DRAWN, shape.numel()
    times = -(-(start + count) // _DRAWN)
    return pool.repeat(times)[start : start + count].view(shape).clone()


def _tokenizer(vocab: int) -> PreTrainedTokenizerFast:
    """Of bytes, as transformers expects it of every kind; a word of three letters with the space before it is
    one token, as about four bytes are for a real one. Every token has a text."""
    bytes_alone = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = list(itertools.product(LETTERS, repeat=2))
    triples = list(itertools.product(LETTERS, repeat=3))
    merges = [(a, b) for a, b in pairs]
    merges += [(a + b, c) for a, b, c in triples] + [(a, b + c) for a, b, c in triples]
    merges += [(_SPACE, a + b + c) for a, b, c in triples]
    known = dict.fromkeys([*bytes_alone, *(left + right for left, right in merges)])
    known |= dict.fromkeys(f"t{number}" for number in range(vocab - len(SPECIAL) - len(known)))
    model = models.BPE(vocab={text: place for place, text in enumerate(known)}, merges=merges)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in SPECIAL])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END_OF_TURN,
        pad_token=PAD,
        model_max_length=32_768,
        chat_template=CHAT_TEMPLATE,
    )
