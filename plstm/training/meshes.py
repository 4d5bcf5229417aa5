"""Devices: parameters on all of them, batches split between them (data parallelism)."""

from __future__ import annotations

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from plstm.errors import UserError


def make_mesh(batch_size: int) -> Mesh:
    """All devices on one axis, "data". Raises UserError where they do not divide the batch."""
    devices = jax.devices()
    if batch_size % len(devices):
        raise UserError(f"optim.batch_size={batch_size}: must be a multiple of the {len(devices)} devices")
    return Mesh(devices, ("data",))


def replicated(mesh: Mesh) -> NamedSharding:
    """The layout of parameters and of data held on the device: a copy on each."""
    return NamedSharding(mesh, PartitionSpec())


def split_batch(mesh: Mesh) -> NamedSharding:
    """The layout of a batch: axis 0 split between the devices."""
    return NamedSharding(mesh, PartitionSpec("data"))
