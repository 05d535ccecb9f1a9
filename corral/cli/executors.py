"""Add, check, list and remove executors: clusters that bring up workers for runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated

import typer

from corral.cli import complete
from corral.cli.connect import connect, find_server, own_project
from corral.cli.display import render
from corral.cli.options import AsJson, command_group
from corral.cli.runs.follow_ranks import follow_run
from corral.client.corral import Corral
from corral.domain.placements.placements import ExecutorKind
from corral.domain.placements.prices import PER_GPU_HOUR, PER_HOUR
from corral.settings import read_settings
from corral.wire.base import validated
from corral.wire.executors import CheckLine, ExecutorCheck, ExecutorRequest, ExecutorView
from corral.wire.spec.run_file import RunSpec

app = command_group(__doc__)

Name = Annotated[str, typer.Argument(help="The executor's name.", autocompletion=complete.executors)]


@app.command()
def add(
    kind: Annotated[ExecutorKind, typer.Argument(help="What kind of cluster it is.")],
    name: Annotated[str | None, typer.Option(help="What to call it; its kind, if left out.")] = None,
    url: Annotated[
        str | None,
        typer.Option(help="Where its workers find this server; the address that you use, if left out."),
    ] = None,
    context: Annotated[str | None, typer.Option(help="Kubernetes: the context of the kubeconfig.")] = None,
    address: Annotated[str | None, typer.Option(help="Ray: the address of the cluster.")] = None,
    price_per_hour: Annotated[
        float | None,
        typer.Option(help="What a worker costs in an hour, in dollars.", min=0),
    ] = None,
    price_per_gpu_hour: Annotated[
        list[str] | None,
        typer.Option(
            help="What each GPU costs in an hour beside that, or that of a model; may be given for several.",
            metavar="[MODEL=]DOLLARS",
        ),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", "-o", help="Another option of the kind, as KEY=VALUE.", metavar="KEY=VALUE"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Add an executor. Runs that name it in `[placement] executors` get their workers there."""
    given = {
        "context": context,
        "address": address,
        PER_HOUR: price_per_hour,
        PER_GPU_HOUR: _gpu_prices(price_per_gpu_hour or ()),
    }
    options: dict[str, object] = {key: value for key, value in given.items() if value is not None}
    options |= dict(_option(text) for text in option or ())
    options.setdefault("url", url or find_server(read_settings()).url)
    called = {"name": name or kind.value, "kind": kind, "options": options}
    request = validated(ExecutorRequest, called, what="the executor")
    with connect() as corral:
        made = corral.executors.add(request)
    then = f"executor {made.name} is added; `corral executors check {made.name}` says whether all is there"
    render.show_line(made, then, as_json=as_json)


def _gpu_prices(texts: Sequence[str]) -> float | dict[str, float] | None:
    """One number for every GPU, or a table by model."""
    found: dict[str, float] = {}
    for text in texts:
        model, _, amount = text.rpartition("=")
        try:
            found[model] = float(amount)
        except ValueError:
            why = f"{text!r} is neither an amount of dollars, as 2.50, nor one of a model, as H100=2.50"
            raise typer.BadParameter(why, param_hint="--price-per-gpu-hour") from None
    if "" in found and len(texts) > 1:
        raise typer.BadParameter("give one price, or one for each model", param_hint="--price-per-gpu-hour")
    return found.get("", found or None)


def _option(text: str) -> tuple[str, object]:
    """Lists, tables, numbers and truth values as JSON; everything else is text."""
    key, is_there, value = text.partition("=")
    if not is_there or not key:
        raise typer.BadParameter(f"{text!r} is not KEY=VALUE", param_hint="--option")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


@app.command("ls")
def list_executors(as_json: AsJson = False) -> None:
    """List executors."""
    with connect() as corral:
        found = corral.executors.all()
    rows = [(one.name, one.kind, one.options.get("url"), _standing(one), one.open) for one in found]
    columns = ("EXECUTOR", "KIND", "SERVER", "STATE", "RUNS")
    render.show_list(
        found, columns, rows, as_json=as_json, empty="no executors; runs go to hosts that joined"
    )


def _standing(executor: ExecutorView) -> str:
    return "added" if executor.removed_at is None else "being removed"


@app.command()
def show(name: Name, as_json: AsJson = False) -> None:
    """Show an executor and its options."""
    with connect() as corral:
        found = corral.executors.get(name)
    about: list[tuple[str, render.Cell]] = [
        ("name", found.name),
        ("kind", found.kind),
        ("state", _standing(found)),
    ]
    about += [("runs", str(found.open)), ("cost so far", _cost(found)), ("added by", found.created_by)]
    about += [
        (key, value if isinstance(value, str) else json.dumps(value)) for key, value in found.options.items()
    ]
    render.show_one(found, about, as_json=as_json)


def _cost(executor: ExecutorView) -> str | None:
    """Of what it held for runs that are still known."""
    known = render.dollars(executor.cost)
    if not executor.unpriced:
        return known
    unknown = f"{executor.unpriced} placement{'s' if executor.unpriced > 1 else ''} of unknown price"
    return unknown if known is None else f"{known}, and {unknown}"


@app.command()
def check(
    name: Name,
    deep: Annotated[bool, typer.Option("--deep", help="Also run something there that ends at once.")] = False,
    as_json: AsJson = False,
) -> None:
    """Say what a launch there needs and whether it is there. Exits 1 if something is missing."""
    with connect() as corral:
        found = corral.executors.check(name)
        if deep and found.ok:
            found = _with_a_run(corral, name, found)
    if as_json:
        render.show_json(found)
    else:
        for line in found.checks:
            render.say(f"{'ok' if line.ok else 'missing':<8} {line.name}: {line.detail}")
            if not line.ok and line.fix:
                render.say(f"         {line.fix}")
    if not found.ok:
        raise typer.Exit(1)


def _with_a_run(corral: Corral, name: str, found: ExecutorCheck) -> ExecutorCheck:
    """The whole way: a worker is brought up, takes a run, and its output comes back."""
    given = {"name": f"check-{name}", "argv": ["true"], "placement": {"executors": [name]}, "wall_limit": 600}
    spec = RunSpec.model_validate({**given, "project": own_project(read_settings())})
    (run_id,) = corral.runs.submit([spec]).ids
    follow_run(corral, run_id, 1, quiet=True)
    run = corral.runs.get(run_id)
    ok = run.state == "succeeded"
    detail = f"run {run_id} {run.state}" + (f": {run.detail}" if run.detail else "")
    line = CheckLine(
        name="run", ok=ok, detail=detail, fix=f"Read `corral why {run_id}` and `corral show {run_id}`."
    )
    return ExecutorCheck(ok=ok, checks=[*found.checks, line])


@app.command("rm")
def remove(
    names: Annotated[list[str], typer.Argument(help="Executors.", autocompletion=complete.executors)],
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="End its workers; their runs wait again. Once more: forget what is left."
        ),
    ] = False,
) -> None:
    """Remove executors. While one has workers only with --force."""
    with connect() as corral:
        for name in names:
            corral.executors.remove(name, force=force)
            left = [one.open for one in corral.executors.all() if one.name == name]
            render.say(f"executor {name} is removed" + (" as soon as its workers are gone" if left else ""))
            if left:
                again = f"corral executors rm {name} --force"
                render.note(f"if its cluster is gone for good, `{again}` once more forgets it")
