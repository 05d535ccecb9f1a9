"""Run by test_kernels.py in a process of its own: Triton decides when it is loaded whether it interprets.

`interpret`: the decode kernel on the CPU, against plain torch. `compile`: both kernels to machine code for an
H200, which needs no GPU.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import torch

from corral.engine.model import kernels
from corral.engine.model.kernels import PAGE
from corral.engine.sampling.decode import attend_plainly

torch.set_num_threads(1)

# Rows, query heads, key heads, head size, most pages. Of 256 rows or more the work is not cut into parts.
SHAPES = ((3, 9, 3, 64, 3), (4, 4, 2, 16, 20), (1, 4, 4, 16, 1), (256, 2, 1, 16, 1))


def interpret() -> None:
    draw = torch.Generator().manual_seed(0)
    for rows, heads, kv_heads, size, most in SHAPES:
        lengths = torch.randint(1, most * PAGE + 1, (rows,), generator=draw, dtype=torch.int32)
        edges = torch.tensor([most * PAGE, 1, min(PAGE + 1, most * PAGE), PAGE], dtype=torch.int32)
        lengths[: len(edges)] = edges[:rows]
        table = torch.randperm(rows * most, generator=draw).view(rows, most).int()
        if most > 1:
            table[-1, 0] = table[0, 0]  # as in a group
        keys, values = (torch.randn(rows * most, kv_heads, PAGE, size, generator=draw) for _ in range(2))
        q = torch.randn(rows, heads, size, generator=draw)
        right = attend_plainly(q.double(), keys.double(), values.double(), table, lengths, 0.3)
        # What lies past the end of a sequence must not matter, not even as 0 * NaN.
        for row in range(rows):
            for page in range(most):
                used = max(0, min(PAGE, int(lengths[row]) - page * PAGE))
                if table[row, page] != table[0, 0]:
                    keys[table[row, page], :, used:] = float("nan")
                    values[table[row, page], :, used:] = float("nan")
        off = (kernels.attend_pages(q, keys, values, table, lengths, 0.3).double() - right).abs().max().item()
        print(rows, heads, kv_heads, size, most, off)
        assert off < 1e-5, off


def build(kernel: str, signature: dict[str, str], fixed: dict[str, int], **options: int) -> Any:
    compiler = importlib.import_module("triton.compiler")
    target = importlib.import_module("triton.backends.compiler").GPUTarget("cuda", 90, 32)
    signature = signature | dict.fromkeys(fixed, "constexpr")
    source = compiler.ASTSource(fn=getattr(kernels, kernel), signature=signature, constexprs=fixed)
    built = compiler.compile(source, target=target, options=options)
    assert len(built.asm["cubin"]) > 0
    # Of what a block of threads may hold on an H200.
    assert built.metadata.shared <= 227 * 1024
    return built


def compile_for_h200() -> None:
    """EN-D13: inductor gives a Python float as fp64, a plain launch as fp32."""
    for scale in ("fp32", "fp64"):
        for parts in (1, 16):
            out = "*bf16" if parts == 1 else "*fp32"
            signature = {
                **dict.fromkeys(("q_ptr", "k_ptr", "v_ptr"), "*bf16"),
                **dict.fromkeys(("table_ptr", "length_ptr"), "*i32"),
                **dict.fromkeys(("out_ptr", "top_ptr", "sum_ptr"), out),
                **{"scale": scale, "table_stride": "i32"},
            }
            fixed = {"PARTS": parts, "KV_HEADS": 8, "GROUP": 4, "ROWS": 16, "SIZE": 128, "PAGE_LEN": PAGE}
            built = build("_attend", signature, fixed, num_warps=4, num_stages=3)
            slow = [line for line in built.asm["ptx"].splitlines() if ".f64" in line and "mul" in line]
            assert not slow, slow
    joined = dict.fromkeys(("mixed_ptr", "top_ptr", "sum_ptr"), "*fp32") | {"out_ptr": "*bf16"}
    build("_join", joined, {"PARTS": 16, "HEADS": 9, "SIZE": 64}, num_warps=2)


if __name__ == "__main__":
    {"interpret": interpret, "compile": compile_for_h200}[sys.argv[1]]()
