"""Executors: adding, checking and removing them, and what they brought up for a run."""

from __future__ import annotations

from corral.client.api import Api
from corral.wire.executors import (
    ExecutorCheck,
    ExecutorPage,
    ExecutorRequest,
    ExecutorView,
    PlacementPage,
    PlacementView,
    WorkerLog,
)


class Executors(Api):
    root = "/v1/executors"

    def add(self, request: ExecutorRequest) -> ExecutorView:
        return self._transport.once("POST", self.root, ExecutorView, body=request)

    def all(self) -> list[ExecutorView]:
        return self._transport.get(self.root, ExecutorPage).items

    def get(self, name: str) -> ExecutorView:
        return self._transport.get(self._path(name), ExecutorView)

    def remove(self, name: str, *, force: bool = False) -> None:
        self._transport.once("DELETE", self._path(name), type(None), params={"force": force})

    def check(self, name: str) -> ExecutorCheck:
        return self._transport.repeat("POST", self._path(name, "check"), ExecutorCheck)

    def placements(self, run_id: str) -> list[PlacementView]:
        return self._transport.get(f"/v1/runs/{run_id}/placements", PlacementPage).items

    def worker_log(self, run_id: str, rank: int) -> str:
        path = f"/v1/runs/{run_id}/placements/log"
        return self._transport.get(path, WorkerLog, {"rank": rank}).text
