"""Rendezvous of a launcher that starts all processes of one machine itself: it opens no port and reads no pickle.

PyTorch's own rendezvous serves its state on every interface of the machine, to anyone, as a pickle.
"""

from torch.distributed import HashStore
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)

BACKEND = "txl-local"
"""Name of this rendezvous for PyTorch's launcher."""


class LocalRendezvous(RendezvousHandler):
    """A rendezvous with a single participant, which keeps its state in memory."""

    def __init__(self, parameters: RendezvousParameters) -> None:
        self._run_id = parameters.run_id
        self._store = HashStore()

    def get_backend(self) -> str:
        return BACKEND

    def next_rendezvous(self) -> RendezvousInfo:
        no_server = RendezvousStoreInfo(master_addr="localhost", master_port=0)  # the processes meet in a file
        return RendezvousInfo(self._store, rank=0, world_size=1, bootstrap_store_info=no_server)

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        pass

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return self._run_id

    def shutdown(self) -> bool:
        return True


def register() -> None:
    """Make this rendezvous known to PyTorch's launcher."""
    rendezvous_handler_registry.register(BACKEND, LocalRendezvous)
