"""Attention of one query over pages: the plain form against a loop, the kernel against the plain form."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from corral.engine.model.kernels import PAGE
from corral.engine.sampling.decode import attend_plainly

SCRIPT = Path(__file__).parent / "kernels_for_tests.py"
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed"
)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_each_query_sees_the_tokens_of_its_own_pages_up_to_its_length(kv_heads: int) -> None:
    draw = torch.Generator().manual_seed(0)
    lengths = torch.tensor([1, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE], dtype=torch.int32)
    table = torch.randperm(15, generator=draw).view(5, 3).int()
    table[4, 0] = table[3, 0]
    keys, values = (torch.randn(15, kv_heads, PAGE, 8, generator=draw) for _ in range(2))
    q = torch.randn(5, 4, 8, generator=draw)

    found = attend_plainly(q, keys, values, table, lengths, 0.3)

    for row, length in enumerate(lengths.tolist()):
        k, v = (
            torch.stack([cache[table[row, at // PAGE], :, at % PAGE] for at in range(length)], dim=1)
            for cache in (keys, values)
        )
        for head in range(4):
            of = head * kv_heads // 4
            right = ((k[of] @ q[row, head]) * 0.3).softmax(0) @ v[of]
            torch.testing.assert_close(found[row, head], right, atol=1e-5, rtol=1e-5)


def run(what: str, cache: Path, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", str(SCRIPT), what],
        env={**os.environ, "TRITON_CACHE_DIR": str(cache), "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_triton
def test_the_kernel_gives_what_plain_torch_gives(tmp_path: Path) -> None:
    """EN-D08: with one part and with many, and whatever lies in the pages past the end."""
    assert len(run("interpret", tmp_path, TRITON_INTERPRET="1").splitlines()) == 4


@needs_triton
def test_the_kernel_builds_for_an_h200_whatever_the_scale_comes_as(tmp_path: Path) -> None:
    """EN-D13."""
    assert run("compile", tmp_path) == ""
