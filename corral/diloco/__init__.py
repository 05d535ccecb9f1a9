"""Replicas that meet only in an object store. Needs of Corral only its errors and its shared files."""

from corral.diloco.loop import OuterLoop, RoundReport
from corral.diloco.round_store import StoreError
from corral.diloco.rounds import NotFinite, ReplicaReplaced
from corral.diloco.torchft import Manager

__all__ = ["Manager", "NotFinite", "OuterLoop", "ReplicaReplaced", "RoundReport", "StoreError"]
