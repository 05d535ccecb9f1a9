"""Modal on this machine, as far as sandboxes need it: the published protobuf types over gRPC.

Modal's own client is on the other side. Each sandbox is a process of this machine.
"""

from support.modal_server.server import ModalServer

__all__ = ["ModalServer"]
