"""`corral hosts show NAME --history`: how busy a host was, as small curves."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from corral.cli.display import curves, render
from corral.cli.hosts.load import percent
from corral.client.corral import Corral
from corral.wire.hosts import GpuSampleView, HostSampleView

_MINUTE_S = 60.0


class Measure(NamedTuple):
    """`most` is the end of its scale, where that is known; else it is what was seen."""

    name: str
    points: list[curves.Point]
    most: float | None
    render: Callable[[float], str | None]


def show_history(corral: Corral, host: str, *, hours: float, as_json: bool) -> None:
    view = corral.hosts.get(host)
    samples = corral.hosts.samples(view.id, since=time.time() - hours * 3600)
    if as_json:
        render.show_json(samples)
        return
    if not samples:
        render.note(f"{view.name} has said nothing of how busy it is in this time")
        return
    since, until = samples[0].at, samples[-1].at + _MINUTE_S
    render.say(f"{view.name} from {render.moment(since)} to {render.moment(until)}\n")
    _show(list(_measures(samples)), since, until)


def _show(measures: Sequence[Measure], since: float, until: float) -> None:
    ends = [[measure.render(value) for value in _ends(measure)] for measure in measures]
    rows = [(measure.name, *end) for measure, end in zip(measures, ends, strict=True)]
    columns = ("", "LEAST", "MOST", "LAST")
    # A column is a minute at least: each has its point, and what is empty was silent.
    width = max(1, min(render.room_beside(columns, rows), round((until - since) / _MINUTE_S)))
    drawn = [_curve(measure, since, until, width) for measure in measures]
    shown = [(name, course, *end) for (name, *end), course in zip(rows, drawn, strict=True)]
    render.show_table(("", "COURSE", *columns[1:]), shown, empty="")


def _ends(measure: Measure) -> tuple[float, float, float]:
    values = [value for _, value in measure.points]
    return min(values), max(values), values[-1]


def _curve(measure: Measure, since: float, until: float, width: int) -> str:
    least, most, _ = _ends(measure)
    scale = (least, most) if measure.most is None else (0.0, max(most, measure.most))
    return curves.timeline(measure.points, since=since, until=until, scale=scale, width=width)


def _measures(samples: Sequence[HostSampleView]) -> Iterator[Measure]:
    """What is known of the host and of each GPU; what was never known is left out."""
    of_host = [(sample.at, sample) for sample in samples]
    memory = max((sample.ram_bytes or 0 for sample in samples), default=0)
    found = [
        Measure("CPU", _known(of_host, lambda one: one.cpu), 1.0, percent),
        Measure("memory", _known(of_host, lambda one: one.ram_used_bytes), memory, _size),
    ]
    for index in sorted({gpu.index for sample in samples for gpu in sample.gpus}):
        of_gpu = [(sample.at, gpu) for sample in samples for gpu in sample.gpus if gpu.index == index]
        found += _of_gpu(f"GPU {index}", of_gpu)
    yield from (measure for measure in found if measure.points)


def _of_gpu(name: str, seen: Sequence[tuple[float, GpuSampleView]]) -> list[Measure]:
    memory = max((gpu.memory_bytes or 0 for _, gpu in seen), default=0)
    return [
        Measure(f"{name} use", _known(seen, lambda one: one.utilisation), 1.0, percent),
        Measure(f"{name} memory", _known(seen, lambda one: one.memory_used_bytes), memory, _size),
        Measure(f"{name} temp.", _known(seen, lambda one: one.temperature_c), None, lambda c: f"{c:.0f} °C"),
        Measure(f"{name} power", _known(seen, lambda one: one.power_w), None, lambda watts: f"{watts:.0f} W"),
    ]


def _known(seen: Sequence[tuple[float, object]], ask: Callable[..., float | None]) -> list[curves.Point]:
    return [(at, value) for at, one in seen if (value := ask(one)) is not None]


def _size(count: float) -> str | None:
    return render.size(int(count))
