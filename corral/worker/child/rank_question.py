"""What a child asks over the rank socket: one line of JSON, believed in nothing."""

from __future__ import annotations

import base64
import json
import math
import time
import uuid
from typing import Any

from corral.client.corral import Corral
from corral.domain.errors import InvalidInput

LONGEST_S = 7 * 86400.0


class RankQuestion:
    """What a child asked for; InvalidInput where it is not what it should be."""

    def __init__(self, line: bytes) -> None:
        try:
            said = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InvalidInput(f"not a line of JSON: {type(error).__name__}") from error
        if not isinstance(said, dict):
            raise InvalidInput("not a JSON object")
        self._said: dict[str, Any] = said
        self.do = self.text("do")
        self.until = time.monotonic() + self.seconds("timeout_s", 0.0)
        # The same for every try, so that the server knows a write that it has seen.
        self.id = uuid.uuid4().hex

    def text(self, name: str) -> str:
        found = self._said.get(name, "")
        if not isinstance(found, str):
            raise InvalidInput(f"`{name}` is not a text")
        return found

    def count(self, name: str) -> int | None:
        found = self._said.get(name)
        if found is None:
            return None
        if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found < 2**62:
            raise InvalidInput(f"`{name}` is not a count")
        return found

    @property
    def creates(self) -> bool:
        return self._said.get("create") is True

    def seconds(self, name: str, default: float) -> float:
        found = self._said.get(name, default)
        if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found):
            raise InvalidInput(f"`{name}` is not a number")
        return min(max(0.0, found), LONGEST_S)

    def put(self, corral: Corral, lease: tuple[str, int]) -> Any:
        try:
            value = base64.b64decode(self.text("value"), validate=True)
        except ValueError as error:
            raise InvalidInput("`value` is not base64") from error
        return corral.leases.put_object(
            *lease,
            self.text("key"),
            value,
            create=self.creates,
            if_match=self.text("if_match") or None,
            request_id=self.id,
        )
