"""How the traffic of replicas is shown before they are launched."""

from __future__ import annotations

from corral.cli.display import render
from corral.cli.display.curves import thousands
from corral.client.training.traffic import TrafficEstimate


def show_traffic(found: TrafficEstimate, *, runs: int) -> None:
    """What one replica moves while every fragment meets once, what all of them move, and the whole run."""
    said = found.traffic
    times = max(1, said.members)
    steps = render.count(found.diloco.inner_steps, "step")
    rows: list[tuple[render.Cell, ...]] = []
    for what, part, over in (
        (f"each replica, {steps}", said.cycle, times),
        (f"all replicas, {steps}", said.cycle, 1),
        ("the whole run", said.whole, 1),
    ):
        moved = [render.size(round(count / over)) for count in (part.up, part.down + part.records)]
        price = found.prices.cost(part)
        rows.append((what, *moved, thousands(part.requests / over), _price(price, over)))
    weights, packed = thousands(found.numbers), found.diloco.compress
    render.say()
    render.say(
        f"{said.members} replicas meet in {found.store}: {render.count(said.rounds, 'round')}, "
        f"{weights} weights" + ("" if packed == "none" else f" as {packed}")
    )
    render.show_table(("TRAFFIC", "UP", "DOWN", "REQUESTS", "PRICE"), rows, empty="nothing is moved")
    if found.cost is None:
        render.note(f"{found.prices.source}: set `price_per_gb` in [diloco]")
    else:
        render.note(f"prices: {found.prices.source}; bytes that are fetched, and requests")
    render.note("who waits for others asks again, and who starts again reads the weights once more")
    most = found.diloco.max_traffic_bytes
    if most is not None and said.whole.total > most:
        render.note(f"note: max_traffic is {render.size(int(most))}: it would be refused at submit")
    if runs > 1:
        render.note(f"note: this is the traffic of one of {runs} runs")


def _price(cost: float | None, over: int) -> str | None:
    return "not known" if cost is None else render.dollars(cost / over)
