"""The seed of this session's machines: random, printed at the end, and given again to replay them."""

from __future__ import annotations

import os
import secrets

SEED = int(os.environ.get("CORRAL_MODEL_SEED", secrets.randbelow(1 << 32)))
