"""The seed of this session's machines: conftest.py draws it and prints it at the end."""

from __future__ import annotations

import os

SEED = int(os.environ["CORRAL_MODEL_SEED"])
