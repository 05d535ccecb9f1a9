"""Schemas and forecasts of training runs, for all sides; standard library only, nothing is trained."""
