"""Recipes (sft, grpo), losses, and what surrounds a training step; no reading of data or models."""
