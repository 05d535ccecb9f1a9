"""`python -m corral.engine`: a training run, an evaluation or a sample, as the worker's child or alone."""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from corral.engine.reports.events import EventWriter, TerminalOutput
from corral.engine.spec import JobPaths

_BEGAN = time.perf_counter()
# How torch's allocator goes about; the second is the older name.
_ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m corral.engine",
        description="Train, evaluate, sample or serve a language model.",
        epilog="Under Corral's worker everything comes from the CORRAL_ variables.",
    )
    parser.add_argument("spec", nargs="?", help="the spec as JSON; CORRAL_SPEC when left out")
    parser.add_argument("--output", default="output", help="where the result goes (./output)")
    parser.add_argument("--checkpoints", default="checkpoints", help="where checkpoints go (./checkpoints)")
    parser.add_argument("--resume", action="store_true", help="go on from the newest of the checkpoints")
    parser.add_argument("--debug", action="store_true", help="show a traceback also for what you can mend")
    return parser.parse_args(argv)


def parse_task(argv: Sequence[str]) -> argparse.Namespace:
    """`eval FOLDER`, `sample FOLDER -m TEXT` and `serve FOLDER`, for the output folder of a run."""
    parser = argparse.ArgumentParser(prog=f"python -m corral.engine {argv[0]}")
    parser.add_argument("run", help="the output folder of a training run")
    parser.add_argument("--output", default=f"{argv[0]}-output", help="where the result goes")
    parser.add_argument("--best", action="store_true", help="the best checkpoint and not the last step")
    parser.add_argument("--debug", action="store_true", help="show a traceback also for what you can mend")
    if argv[0] == "eval":
        parser.add_argument("--rows", type=int, help="how many rows or tasks")
        parser.add_argument("--data", help="rows to evaluate on, if not those of the run")
        parser.add_argument("--environment", help="the environment, if it is not where it was")
    elif argv[0] == "serve":
        parser.add_argument("--name", help="what clients call the model; the folder's name when left out")
        parser.add_argument("--port", type=int, help="where to listen on this machine (8000)")
        parser.add_argument("--token-file", help="a file with the API key; one is made when left out")
        parser.add_argument("--context", type=int, help="the most tokens of a prompt and its answer")
        parser.add_argument("--rows", type=int, help="how many answers are written side by side")
    else:
        asked = parser.add_mutually_exclusive_group(required=True)
        asked.add_argument("-m", "--message", help="what to say, in the form that it was trained in")
        asked.add_argument("--prompt", help="a text to go on from, without a chat template")
        parser.add_argument("--system", help="a system message")
        parser.add_argument("-n", type=int, help="how many answers")
        parser.add_argument("--max-tokens", type=int)
        parser.add_argument("--temperature", type=float)
        parser.add_argument("--seed", type=int)
    return parser.parse_args(argv[1:])


def places(said: argparse.Namespace, environ: Mapping[str, str]) -> JobPaths:
    def folder(variable: str, otherwise: str) -> Path:
        return Path(environ.get(variable) or otherwise)

    def given(variable: str) -> Path | None:
        return Path(environ[variable]) if environ.get(variable) else None

    spec = said.spec or environ.get("CORRAL_SPEC")
    if not spec:
        raise SystemExit("error: name the spec: `python -m corral.engine spec.json`, or see --help")
    return JobPaths(
        spec=Path(spec).absolute(),
        output=folder("CORRAL_OUTPUT_DIR", said.output).absolute(),
        checkpoints=folder("CORRAL_CHECKPOINT_DIR", said.checkpoints).absolute(),
        inputs=given("CORRAL_INPUT_DIR"),
        resume=given("CORRAL_RESUME_DIR"),
        events=given("CORRAL_EVENTS"),
    )


def task_places(task: str, said: argparse.Namespace) -> JobPaths:
    """Write the spec that `corral eval` or `corral sample` would submit, and say where everything lies."""
    run, output = Path(said.run).absolute(), Path(said.output).absolute()
    try:
        record = json.loads((run / "train.json").read_bytes())
        table, model = record["in_effect"], record["model"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SystemExit(f"error: {run} is not the output of a training run: {error}") from None
    ask: dict[str, object] = {"which": "best" if said.best else "last"}
    if task == "eval":
        ask |= {"rows": said.rows}
        table |= {key: str(Path(value).absolute()) for key, value in _moved(said).items()}
    elif task == "serve":
        ask |= {"port": said.port, "context": said.context, "rows": said.rows}
        ask |= {"token_file": said.token_file and str(Path(said.token_file).absolute())}
    else:
        ask |= {"prompt": said.prompt} if said.message is None else {"messages": _messages(said)}
        ask |= {"n": said.n or 1}
        ask |= {"max_tokens": said.max_tokens, "temperature": said.temperature, "seed": said.seed}
    spec = {"task": task, "model": model, "model_revision": record.get("revision"), task: ask}
    if table.get("method") == "full":
        spec |= {"model": str(run / "model"), "model_revision": None}
    else:
        table |= {"adapter": str(run)}
    spec |= {"train": table, "seed": record.get("seed", 0)}
    if task == "serve":
        spec |= {"name": said.name or run.name}
    output.mkdir(parents=True, exist_ok=True)
    (output / "spec.json").write_text(json.dumps(spec, indent=2), encoding="utf-8")
    # Paths in the table are those of the run, which was started in the folder of its own spec.
    return JobPaths(output / "spec.json", output, output / "checkpoints", base=Path(record.get("base", ".")))


def _messages(said: argparse.Namespace) -> list[dict[str, str]]:
    system = [{"role": "system", "content": said.system}] if said.system else []
    return [*system, {"role": "user", "content": said.message}]


def _moved(said: argparse.Namespace) -> dict[str, str]:
    given = {"eval_data": said.data, "environment": said.environment}
    return {key: value for key, value in given.items() if value is not None}


def main(argv: Sequence[str]) -> int:
    is_task = argv[:1] in (["eval"], ["sample"], ["serve"])
    said = parse_task(argv) if is_task else parse(argv)
    where = task_places(argv[0], said) if is_task else places(said, os.environ)
    if not any(name in os.environ for name in _ALLOCATOR):
        # Otherwise blocks of a size that no longer comes are kept, and a run takes a tenth more than it uses.
        os.environ[_ALLOCATOR[0]] = "expandable_segments:True"
    EventWriter(where.events, TerminalOutput()).doing("starting the engine")
    # Loaded here: torch takes seconds, and --help or a spec that is missing should not wait for it. Without
    # the garbage collector, which would look through a million objects many times and free none of them.
    gc.disable()
    from corral.engine import job  # noqa: PLC0415

    gc.freeze()
    gc.enable()
    again = not is_task and said.resume
    return job.main(where, os.environ, again=again, debug=said.debug, began=_BEGAN)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
