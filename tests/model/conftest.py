"""How long the machines run, and how a failure is replayed: see `test_api_sqlite`."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "model-ci",
    max_examples=24,
    stateful_step_count=50,
    deadline=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
settings.register_profile(
    "model-long", parent=settings.get_profile("model-ci"), max_examples=3000, stateful_step_count=80
)
PROFILE = settings.get_profile(f"model-{os.environ.get('CORRAL_MODEL_PROFILE', 'ci')}")
