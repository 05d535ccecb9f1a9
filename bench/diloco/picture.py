"""A picture of curves, as SVG."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from xml.sax.saxutils import escape

Curve = Sequence[tuple[float, float]]

WIDTH, HEIGHT = 720, 400
LEFT, RIGHT, TOP, BOTTOM = 64, 24, 44, 52
COLOURS = ("#8c4a1f", "#1f6f8c", "#3f8c1f", "#7a1f8c", "#888888")


def draw(title: str, curves: Mapping[str, Curve], *, across: str, up: str) -> str:
    """Lines with a legend; both axes begin near the smallest value."""
    xs = [x for curve in curves.values() for x, _ in curve]
    ys = [y for curve in curves.values() for _, y in curve]
    x_ticks, y_ticks = _ticks(0.0, max(xs)), _ticks(min(ys), max(ys))
    x_at = _scale(x_ticks[0], max(max(xs), x_ticks[-1]), LEFT, WIDTH - RIGHT)
    y_at = _scale(y_ticks[0], max(max(ys), y_ticks[-1]), HEIGHT - BOTTOM, TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="13">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        _text(WIDTH / 2, 24, title, "middle", size=15),
    ]
    for value in y_ticks:
        y = y_at(value)
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#e4e0dc"/>')
        parts.append(_text(LEFT - 8, y + 4, f"{value:g}", "end"))
    parts += [_text(x_at(value), HEIGHT - BOTTOM + 20, _short(value), "middle") for value in x_ticks]
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, across, "middle"))
    parts.append(f'<g transform="rotate(-90 16 {HEIGHT / 2})">{_text(16, HEIGHT / 2, up, "middle")}</g>')
    for number, (name, curve) in enumerate(curves.items()):
        colour = COLOURS[number % len(COLOURS)]
        points = " ".join(f"{x_at(x):.1f},{y_at(y):.1f}" for x, y in curve)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        y = TOP + 16 + 20 * number
        parts.append(
            f'<line x1="400" y1="{y - 4}" x2="424" y2="{y - 4}" stroke="{colour}" stroke-width="3"/>'
        )
        parts.append(_text(432, y, name, "start"))
    return "\n".join([*parts, "</svg>", ""])


def _text(x: float, y: float, said: str, anchor: str, size: int = 13) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="#333333">'
        f"{escape(said)}</text>"
    )


def _scale(low: float, high: float, first: float, last: float) -> Callable[[float], float]:
    return lambda value: first + (value - low) * (last - first) / (high - low)


def _ticks(low: float, high: float) -> list[float]:
    """Some five round values, the first of which is not above the lowest."""
    power = 10.0 ** math.floor(math.log10((high - low) / 4))
    step = max(power * times for times in (1, 2, 5) if power * times <= (high - low) / 3)
    first = math.floor(low / step)
    return [round(step * (first + number), 9) for number in range(math.floor(high / step) - first + 1)]


def _short(value: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"
