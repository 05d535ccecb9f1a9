"""Large bodies of JSON are read and validated in a thread: on the event loop everybody would wait for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute

from corral.server.bodies.checked_json import SMALL_BYTES
from corral.server.services import Services


class LargeBodyRoute(APIRoute):
    """The framework is given the model that the body is, and validates nothing itself."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        answer, field = super().get_route_handler(), self.body_field

        async def handler(request: Request) -> Response:
            body = b"" if field is None else await request.body()
            if field is None or len(body) <= SMALL_BYTES:
                return await answer(request)

            def read() -> Any:
                made, faults = field.validate(json.loads(body), {}, loc=("body",))
                if faults:
                    raise RequestValidationError(faults)
                return made

            services: Services = request.app.state.services
            # What is no JSON the framework says in the words that small bodies get.
            with suppress(json.JSONDecodeError, UnicodeDecodeError, RecursionError):
                # Where it looks for what it has parsed before.
                request._json = await services.in_thread(read)
            return await answer(request)

        return handler
