"""What can be seen of a run file's params and files on this machine alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from corral.client.submit.all_faults import SoundPart
from corral.client.submit.local_files import FileReader
from corral.client.submit.params import ParamChecks
from corral.client.submit.problems import ProblemList
from corral.client.submit.run_file import expand
from corral.wire.spec.run_file import RunFile


def look_here(sound: SoundPart[RunFile], base_dir: Path, environ: Mapping[str, str]) -> None:
    """InvalidInput for params that do not fit, and for code and inputs that are not there."""
    run_file, problems = sound.value, ProblemList()
    files = FileReader(base_dir, frozenset(), lambda _, make: make(), lambda _: None)
    if not sound.without & {"params", "sweep"}:
        variants = [variant.params for variant in expand(run_file)]
        problems.collect(lambda: ParamChecks(run_file, base_dir, environ).checked(variants))
    problems.collect(lambda: files.code(run_file))
    problems.collect(lambda: files.inputs(run_file))
    problems.check("the run")
