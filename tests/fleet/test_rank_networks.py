"""Ranks on hosts with networks of their own: in namespaces, none of which sees another's loopback."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.local_cluster import wait_final

from corral.wire.spec.run_file import RunSpec
from corral.wire.spec.tables import Replicas
from fleet.conftest import namespace_network
from fleet.fleet import Fleet, fleet

# Unchanged torch: where the others are, it finds in its environment. Each rank has data of its own.
TRAIN = """
import os, sys
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
total = torch.tensor([float(rank + 1)])
dist.all_reduce(total)
torch.manual_seed(rank)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
before = model.module.weight.detach().clone()
for _ in range(5):
    loss = (model(torch.randn(16, 8)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("sum", int(total), "world", world, "moved", not torch.equal(before, model.module.weight))
with open(os.path.join(os.environ["CORRAL_OUTPUT_DIR"], "weights"), "wb") as out:
    for value in model.state_dict().values():
        out.write(value.numpy().tobytes())
dist.destroy_process_group()
"""


@pytest.fixture
def two_hosts(tmp_path: Path) -> Iterator[Fleet]:
    pytest.importorskip("torch")
    with fleet(tmp_path, namespace_network(), lease_s=10.0) as made:
        for name in ("one", "two"):
            made.add(name)
        made.wait_ready()
        yield made


def test_two_ranks_of_torch_train_over_two_hosts_and_end_with_the_same_weights(two_hosts: Fleet) -> None:
    """`env://` as it is: MASTER_ADDR and gloo's interface are those of the network that joins the hosts."""
    corral = two_hosts.corral
    spec = RunSpec(
        argv=[sys.executable, "-c", TRAIN],
        env={"OMP_NUM_THREADS": "1"},
        replicas=Replicas(min=2, max=2),
    )
    (run_id,) = two_hosts.submit(spec)

    run = wait_final(corral, run_id, within_s=300)

    assert run.state == "succeeded", (run.reason, run.detail)
    assert sorted(rank.host or "" for rank in run.attempts[-1].ranks) == ["one", "two"]
    said = [line.text for rank in range(2) for line in corral.runs.iter_logs(run_id, rank=rank)]
    assert said.count("sum 3 world 2 moved True") == 2, said
    outputs = [one for one in corral.runs.artifacts(run_id).items if one.kind == "output"]
    assert len(outputs) == 2
    assert len({one.digest for one in outputs}) == 1
