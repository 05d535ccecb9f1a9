"""The executor port over Slurm: one job with a task per rank, or an array of jobs where fewer may start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from corral.adapters.executors.slurm import fitting
from corral.adapters.executors.slurm.api import SlurmApi
from corral.adapters.executors.slurm.models import (
    QueuedJob,
    SlurmHandle,
    SlurmOptions,
    mark,
    mark_of,
    read_handle,
)
from corral.adapters.executors.slurm.preflight import preflight_script, read_checks, unreachable_check
from corral.adapters.executors.slurm.scripts import common_flags, sbatch_flags
from corral.adapters.executors.slurm.sightings import sighting
from corral.domain.hosts.capability import Requirements
from corral.domain.placements.orders import Capacity, Launched, LaunchOrder, PreflightCheck, Sighting
from corral.ports.executor import ExecutorUnreachable, LaunchRefused


class SlurmExecutor:
    """It holds nothing between calls: whoever has the handle and the same options goes on."""

    def __init__(self, options: SlurmOptions) -> None:
        self._options = options
        self._api = SlurmApi(options)

    def preflight(self) -> Sequence[PreflightCheck]:
        try:
            answer = self._api.run(preflight_script(self._options, common_flags(self._options)))
        except ExecutorUnreachable as error:
            return [unreachable_check(error, self._options)]
        checks = read_checks(answer.out, self._options)
        if not checks:
            return [unreachable_check(ExecutorUnreachable(answer.err or "no answer"), self._options)]
        return checks

    def capacities(self) -> Sequence[Capacity]:
        return fitting.capacities(self._api.nodes(), self._options)

    def refusals(self, need: Requirements, ranks: int) -> Sequence[str]:
        return fitting.refusals(need, ranks, self._api.nodes(), self._options)

    def launch(self, order: LaunchOrder) -> str:
        if reasons := fitting.unnamed(order.need, self._options):
            raise LaunchRefused(f"this order cannot be put in Slurm's words: {'; '.join(reasons)}")
        if order.image is not None and self._options.image_flag is None:
            raise LaunchRefused(
                f"the run wants the image {order.image}, and this executor starts workers without containers",
                hint="Set the executor's image_flag to srun's option for images, or leave the image out.",
            )
        gpus = fitting.gpu_flags(order.need, self._options)
        return str(self._api.launch(order, sbatch_flags(self._options, order, gpus)))

    def observe(self, handles: Sequence[str]) -> Mapping[str, Sighting]:
        asked = {text: handle for text in handles if (handle := read_handle(text))}
        if not asked:
            return {}
        told = self._api.observe(list(asked.values()))
        rows: dict[SlurmHandle, list[QueuedJob]] = {}
        for job in [*told.history, *told.queue]:
            rows.setdefault(SlurmHandle(job.job_id, job.key or ""), []).append(job)
        found = {}
        for text, handle in asked.items():
            jobs = {job.element: job for job in rows.get(handle, ())}
            seen = sighting(handle, jobs, told.files.get(handle.key, {}))
            if seen is not None:
                found[text] = seen
        return found

    def logs(self, handle: str, rank: int, *, most_bytes: int) -> str:
        job = read_handle(handle)
        return self._api.logs(job, rank, most_bytes) if job else ""

    def cancel(self, handle: str) -> None:
        if job := read_handle(handle):
            self._api.cancel(job)

    def launched(self, installation: str) -> Sequence[Launched]:
        ours = [job for job in self._api.launched() if mark_of(job.name) == mark(installation)]
        handles = dict.fromkeys(SlurmHandle(job.job_id, job.key) for job in ours if job.key)
        return [Launched(handle.key, str(handle)) for handle in handles]

    def close(self) -> None:
        return None
