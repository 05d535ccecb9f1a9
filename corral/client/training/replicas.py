"""Looks at where the replicas of a run are to meet: a folder must be the same place on every host."""

from __future__ import annotations

from collections.abc import Sequence

from corral.client.submit.run_file import wrong_field
from corral.domain.placements.placements import ExecutorKind
from corral.recipes.diloco import is_folder
from corral.wire.executors import ExecutorView
from corral.wire.spec.run_file import RunFile

# Their workers have disks of their own, which end with them.
_SHARE_NOTHING = frozenset({ExecutorKind.MODAL, ExecutorKind.SAGEMAKER})


def meets_in_folder(run_file: RunFile) -> str | None:
    """The folder, if the run's replicas meet in one."""
    store = (run_file.diloco or {}).get("store")
    return store if isinstance(store, str) and is_folder(store) else None


def check_folder(run_file: RunFile, known: Sequence[ExecutorView]) -> tuple[str, ...]:
    """What people should know of it; InvalidInput where the run goes to machines that cannot have it."""
    folder = meets_in_folder(run_file)
    if folder is None or not run_file.placement.executors:
        return ()
    kinds = {one.name: one.kind for one in known}
    for name in run_file.placement.executors:
        if (kind := kinds.get(name)) in _SHARE_NOTHING:
            raise wrong_field(
                "diloco.store",
                f"{folder} may be a folder here, and the machines of executor {name} ({kind}) share none",
                hint="Name a bucket that they can reach: s3://bucket/prefix.",
            )
    return (f"the replicas meet in {folder}: it must be the same folder on every host of the run",)
