"""Recipes, losses, and what goes on around a training step."""
