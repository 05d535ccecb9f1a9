"""The engine against TRL on one GPU: `python -m bench.engine`. Needs torch, transformers and peft only."""
