"""What a host has: what it reports, what was declared for it, and what counts."""

from __future__ import annotations

import typer

from corral.cli.display import render
from corral.domain.hosts.capability import ENGINE_PACKAGES
from corral.wire.hosts import CapabilityReport, HostView

_POLICY = (
    ("allow", "takes only"),
    ("deny", "never takes"),
    ("projects", "projects"),
    ("secrets", "secrets of"),
    ("slots_per_gpu", "runs per GPU"),
)


def show(host: HostView) -> None:
    """A table of the three side by side, then the policy."""
    has, counts = host.capability, host.effective or host.capability
    if has is None or counts is None:
        typer.echo("\nit has not reported what it has yet")
        return
    said = host.declared or {}
    rows = [
        ("slots", host.slots, _said(said.get("slots")), host.effective_slots),
        ("cores", has.cores, _said(said.get("cores")), counts.cores),
        ("memory", *_sizes(has.ram_bytes, said.get("ram_bytes"), counts.ram_bytes)),
        ("disk", *_sizes(has.disk_bytes, said.get("disk_bytes"), counts.disk_bytes)),
        ("GPUs", _gpus(has), _said(said.get("gpus")), _gpus(counts)),
        ("GPU memory", _vram(has), render.size(_bytes(said.get("vram_bytes"))), _vram(counts)),
        ("labels", ", ".join(has.labels), _said(said.get("labels")), ", ".join(counts.labels)),
    ]
    typer.echo()
    render.show_table(("", "REPORTED", "DECLARED", "COUNTS"), rows, empty="")
    policy = [(words, _said(said[key]) or "none") for key, words in _POLICY if key in said]
    if host.declared is not None:
        typer.echo()
        render.show_pairs([("declared by", host.declared_by or "hand"), *policy])


def engine(has: CapabilityReport) -> str | None:
    """`torch 2.13.0` where the host can train, `none` where something of the engine is missing."""
    if has.engine is None:
        return None
    whole = all(has.engine.get(name) for name in ENGINE_PACKAGES)
    return f"torch {has.engine['torch']}" if whole else "none"


def _sizes(*values: object) -> list[str | None]:
    return [render.size(_bytes(value)) for value in values]


def _bytes(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _gpus(has: CapabilityReport) -> str:
    if has.gpus is None:
        return "unknown"
    return ", ".join(f"{gpu.index}: {gpu.name}" for gpu in has.gpus) or "none"


def _vram(has: CapabilityReport) -> str | None:
    return ", ".join(render.size(gpu.memory_bytes) or "unknown" for gpu in has.gpus or ()) or None


def _said(value: object) -> str | None:
    if value is None:
        return None
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
