"""Takes secrets out of a lease's output, also those that one record begins and a later one ends."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import NamedTuple

from corral.domain.ids import LeaseId
from corral.domain.secrets.redact import HeldBytes, SecretValues, StreamRedactor

# Of all leases together. A lease has bytes here only while its last line is unfinished and may end with the
# beginning of a secret.
MOST_HELD_BYTES = 16 << 20

HeldStreams = Mapping[str, HeldBytes]


class RecordRedactor:
    """For the records of one batch, in order; `begun` is what the batch before it left, by stream."""

    def __init__(self, values: SecretValues, begun: HeldStreams) -> None:
        self.values = values
        self._streams = {stream: StreamRedactor(values, held) for stream, held in begun.items()}

    def record(self, stream: str, text: str, *, partial: bool) -> str:
        """The text without secrets. What may begin one goes to the record that goes on with the line."""
        redactor = self._streams.setdefault(stream, StreamRedactor(self.values))
        found = redactor.feed(text.encode("utf-8", "surrogatepass"))
        if not partial:
            found += redactor.flush()
        return found.decode("utf-8", "surrogatepass")

    def begun(self) -> HeldStreams:
        held = {stream: redactor.held for stream, redactor in self._streams.items()}
        return {stream: one for stream, one in held.items() if one.data}


class _HeldBatch(NamedTuple):
    seq: int
    begun: HeldStreams

    def size(self) -> int:
        return sum(len(held.data) for held in self.begun.values())


class BegunSecrets:
    """What may be the beginning of a secret, from one batch of a lease to the next. It is in memory alone: a
    server that restarts meanwhile leaves those few bytes out of the log."""

    def __init__(self, most_bytes: int = MOST_HELD_BYTES) -> None:
        self._most_bytes = most_bytes
        self._leases: OrderedDict[LeaseId, _HeldBatch] = OrderedDict()

    def before(self, lease_id: LeaseId, seq: int) -> HeldStreams:
        """What batch `seq` goes on from."""
        held = self._leases.get(lease_id)
        # Another server may have taken batches in between.
        return held.begun if held is not None and held.seq == seq - 1 else {}

    def keep(self, lease_id: LeaseId, seq: int, begun: HeldStreams) -> None:
        """Batch `seq` is accepted, and left this."""
        self._leases.pop(lease_id, None)
        if begun:
            self._leases[lease_id] = _HeldBatch(seq, begun)
            while sum(held.size() for held in self._leases.values()) > self._most_bytes:
                self._leases.popitem(last=False)

    def forget(self, lease_id: LeaseId) -> None:
        """The lease ends."""
        self._leases.pop(lease_id, None)

    def __len__(self) -> int:
        return len(self._leases)
