"""Ranks that cannot reach each other meet through `corral.rank`: on real workers, through kills, outages."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from support.local_cluster import LocalCluster, local_cluster, marked, problems, python, wait_final
from support.waiting import eventually

import corral as package
from corral.client.corral import Corral
from corral.domain.runs.states import FINAL
from corral.wire.runs import RunDetail
from corral.wire.spec.run_file import RunSpec
from corral.wire.spec.tables import Replicas, RetryBudgets

# The child's Python is told where Corral lies, and has nothing that is installed beside it.
BEGIN = f"""
sys.path.insert(0, {str(Path(package.__file__).parents[1])!r})
from corral import rank
me, attempt = rank.rank(), int(env['CORRAL_ATTEMPT'])
"""
TOGETHER = """
assert rank.world_size() == 4
for turn in range(3):
    assert rank.barrier('start', 60) == (0, 1, 2, 3)
assert rank.broadcast('seed', b'42' if me == 2 else None, root=2, timeout_s=60) == b'42'
assert rank.broadcast('seed', b'' if me == 2 else None, root=2, timeout_s=60) == b''
if rank.create('leader', b'%d' % me):
    print('leader')
while True:
    old = rank.get('count')
    if rank.compare_and_set('count', old, b'%d' % (int(old or 0) + 1)):
        break
rank.put(f'here/{me}', bytes([0, me, 255]))
for other in range(4):
    assert rank.wait(f'here/{other}', 60) == bytes([0, other, 255])
rank.barrier('counted', 60)
assert rank.get('count') == b'4'
assert rank.keys('here/') == [f'here/{other}' for other in range(4)]
assert rank.keys() == ['count', *rank.keys('here/'), 'leader'], rank.keys()
rank.barrier('seen', 60)
rank.delete(f'here/{me}')
rank.barrier('deleted', 60)
assert rank.keys('here/') == [] and rank.get('here/0') is None and rank.get('here/0', 0.05) is None
if me == 0:
    try:
        rank.barrier('alone', 0.3)
        print('nobody was waited for')
    except rank.RankTimeout as error:
        print(error)
        assert error.missing == (1, 2, 3)
    try:
        rank.wait('never', 0.1)
    except TimeoutError as error:
        print(error)
if me in (1, 3):
    assert rank.barrier('two', 60, count=2) == (1, 3)
heavy = ('httpx', 'pydantic', 'corral.client', 'corral.domain')
assert [name for name in sys.modules if name.startswith(heavy)] == []
assert [name for name in env if 'TOKEN' in name] == []
print('ok')
"""
LATE = """
def come(name):
    (F / f'{name}-{me}').touch()
    return name
F = pathlib.Path(FOLDER)
assert rank.barrier(come('first'), 60) == (0, 1, 2, 3)
if me == 3:
    come('last')
    while not (F / 'go').exists():
        time.sleep(0.02)
come('waits')
met = rank.barrier('second', 60)
print('met', len(met))
"""
RESTARTED = """
rank.put(f'attempt-{attempt}/{me}', b'x')
assert rank.create(f'once/{me}', b'x')
rank.barrier('all', 60)
found = rank.keys()
assert found == [f'attempt-{attempt}/{r}' for r in range(4)] + [f'once/{r}' for r in range(4)], found
print('met', attempt)
if attempt == 1:
    if me == 3:
        time.sleep(600)
    rank.barrier('never', 600)
rank.barrier('end', 60)
print('done')
"""
HOSTILE = """
import socket, threading
path = env['CORRAL_RANK_SOCKET']
assert os.stat(path).st_mode & 0o777 == 0o600
folder = os.open(os.path.dirname(path), os.O_RDONLY)
def connected():
    link = socket.socket(socket.AF_UNIX)
    link.connect(f'/proc/self/fd/{folder}/rank.sock')
    link.settimeout(60)
    return link
def ask(line):
    with connected() as link:
        try:
            link.sendall(line)
        except OSError:
            return {'error': 'hung up'}
        return json.loads(link.makefile('rb').readline() or b'{"error": "hung up"}')
def told(**question):
    return ask(json.dumps(question).encode() + b'\\n').get('error')
said = [
    ask(b'x' * (1 << 20))['error'],
    ask(b'not json\\n')['error'],
    ask(b'[' * 100000 + b'\\n')['error'],
    ask(b'[]\\n')['error'],
    told(do='finish'),
    told(do='get', key='../finish'),
    told(do='put', key='a/../../../finish', value=''),
    told(do='get', key=7),
    told(do='get', key='a', wait_s='soon'),
    told(do='put', key='a', value='###'),
    told(do='put', key='a b', value=''),
]
print(*said)
try:
    rank.put('a', b'x' * 70_000)
except rank.RankError as error:
    print(error.code)
try:
    rank.put('corral/master/1', b'')
except ValueError as error:
    print('kept')
silent = [connected() for _ in range(32)]
while told(do='get', key='a') != 'too_many':
    pass
print('too_many')
for link in silent:
    link.close()
while told(do='get', key='a') == 'too_many':
    pass
rank.put('a', b'x' * 65_536)
print(len(rank.get('a')))
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Two hosts with three slots each, and a server that keeps its port."""
    home = tmp_path_factory.mktemp("meetings")
    with local_cluster(home / "server", lease_s=3.0) as made:
        made.port = urlsplit(made.url).port or 0
        made.own_worker(slots=3)
        made.other_worker(home / "other", "other", slots=3)
        hosts = made.client().hosts
        eventually(lambda: len([h for h in hosts.all() if h.capability]) == 2, "both hosts to be here")
        yield made
        assert problems(made.client()) == []


def gang(code: str, ranks: int = 4) -> RunSpec:
    retries = RetryBudgets(infrastructure=3, code=3)
    ranks_of = Replicas(min=ranks, max=ranks)
    return python(BEGIN + code, replicas=ranks_of, retries=retries, grace=2.0)


def submitted(corral: Corral, spec: RunSpec) -> str:
    (run_id,) = corral.runs.submit([spec]).ids
    return run_id


def lines(corral: Corral, run_id: str, rank: int) -> list[str]:
    return [line.text for line in corral.runs.iter_logs(run_id, rank=rank)]


def succeeded(corral: Corral, run_id: str) -> RunDetail:
    run = wait_final(corral, run_id, within_s=90)
    told = [lines(corral, run_id, rank) for rank in range(4)]
    assert run.state == "succeeded", (run.reason, run.detail, told)
    return run


def test_four_ranks_on_two_hosts_meet_agree_and_count(cluster: LocalCluster) -> None:
    """DL-D34: all obey one value. DL-D12: what one rank wrote, the others read, list, and create once."""
    corral = cluster.client()
    run = succeeded(corral, submitted(corral, gang(TOGETHER)))
    assert len({rank.host for rank in run.attempts[-1].ranks}) == 2
    said = [lines(corral, run.id, rank) for rank in range(4)]
    assert [texts[-1] for texts in said] == ["ok"] * 4
    assert sum("leader" in texts for texts in said) == 1
    late = "barrier 'alone' had 1 of all ranks after 0.3 s; not there: rank 1, 2, 3"
    assert [text for text in said[0] if text != "leader"] == [
        late,
        "nobody has put 'never' within 0.1 s",
        "ok",
    ]


def test_a_barrier_outlasts_a_server_that_is_killed_and_comes_back(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """DL-D01: the last rank comes while the server is away; all meet when it is back, in the same attempt."""
    corral = cluster.client()
    run_id = submitted(corral, gang(LATE.replace("FOLDER", repr(str(tmp_path)))))
    before = ["last-3", *(f"waits-{rank}" for rank in range(3))]
    eventually(lambda: all((tmp_path / name).exists() for name in before), "three ranks to wait")
    cluster.kill_server()
    (tmp_path / "go").touch()
    eventually((tmp_path / "waits-3").exists, "the last rank to come")
    corral = cluster.start_server()
    run = succeeded(corral, run_id)
    assert [lines(corral, run_id, rank)[-1] for rank in range(4)] == ["met 4"] * 4
    assert len(run.attempts) == 1


def test_a_killed_rank_and_the_gang_that_begins_again_sees_nothing_old(cluster: LocalCluster) -> None:
    """DL-D27: what the attempt before left is not there, not even half a barrier."""
    corral = cluster.client()
    run_id = submitted(corral, gang(RESTARTED))

    def met() -> bool:
        assert corral.runs.get(run_id).state not in FINAL
        return all("met 1" in lines(corral, run_id, rank) for rank in range(4))

    eventually(met, "all ranks to have met")
    pids = [
        pid
        for worker in cluster.workers
        for pid in marked(worker.data_dir, CORRAL_RUN_ID=run_id, CORRAL_RANK="3")
    ]
    os.kill(max(pids), signal.SIGKILL)
    run = succeeded(corral, run_id)
    assert len(run.attempts) == 2
    for rank in range(4):
        assert [text for text in lines(corral, run_id, rank) if text in ("met 2", "done")] == [
            "met 2",
            "done",
        ]


def test_a_hostile_child_is_refused_and_reaches_nothing_else(cluster: LocalCluster) -> None:
    corral = cluster.client()
    run_id = submitted(corral, gang(HOSTILE, 1))
    succeeded(corral, run_id)
    bad = "invalid_input"
    said = ["hung up", *[bad] * 4, *[bad] * 2, *[bad] * 4]
    assert lines(corral, run_id, 0) == [" ".join(said), "rank_error", "kept", "too_many", "65536"]
