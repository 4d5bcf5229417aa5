"""Devices: one mesh with the axes "data" and "fsdp" over all of them, in one process or in many.

A batch is split between all devices, the training state over "fsdp" and copied over "data": with fsdp=1 each device has
all of it (data parallelism), with fsdp=devices nothing is stored twice (ZeRO, Rajbhandari et al., 2020).
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from plstm.errors import UserError

MIN_SPLIT = 4096  # numbers; a smaller tensor is not split: splitting it would cost more than it saves


def make_mesh(batch_size: int, fsdp: int = 1, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """A mesh of the devices, by default all. Raises UserError unless their number divides the batch, and `fsdp` divides
    their number."""
    devices = sorted(devices or jax.devices(), key=lambda device: (device.process_index, device.id))
    if len(devices) % fsdp:
        raise UserError(f"mesh.fsdp={fsdp}: must divide the number of devices, {len(devices)}")
    if batch_size % len(devices):
        raise UserError(f"optim.batch_size={batch_size}: must be a multiple of the {len(devices)} devices")
    return Mesh(np.reshape(devices, (-1, fsdp)), ("data", "fsdp"))


class Layout:
    """Where the arrays of a run lie on its devices. All of its processes call each method, with arrays of one shape."""

    def __init__(self, mesh: Mesh):
        self.mesh = mesh
        self.copies = NamedSharding(mesh, PartitionSpec())  # a whole copy on each device
        self.rows = NamedSharding(mesh, PartitionSpec(("data", "fsdp")))  # a batch: axis 0 split between the devices

    def state(self, tree: Any) -> Any:
        """The sharding of each tensor of a training state: the largest axis that "fsdp" divides is split."""
        parts = self.mesh.shape["fsdp"]

        def sharding(leaf: Any) -> NamedSharding:
            axes = [axis for axis, size in enumerate(leaf.shape) if size % parts == 0]
            if parts == 1 or not axes or np.prod(leaf.shape) < MIN_SPLIT:
                return self.copies
            largest = max(axes, key=lambda axis: leaf.shape[axis])
            parts_by_axis = ("fsdp" if axis == largest else None for axis in range(leaf.ndim))
            return NamedSharding(self.mesh, PartitionSpec(*parts_by_axis))

        return jax.tree.map(sharding, tree)

    def place_copies(self, tree: Any) -> Any:
        """Puts arrays that every process has whole onto every device."""
        return jax.tree.map(lambda leaf: _place(leaf, self.copies), tree)

    def place_state(self, tree: Any) -> Any:
        """Puts a training state that every process has whole onto the devices, sharded as `state` says."""
        return jax.tree.map(_place, tree, self.state(tree))

    def place_rows(self, batch: Any) -> Any:
        """Puts a batch, of which each process has its own rows in the order of the processes, onto the devices."""
        return jax.tree.map(lambda leaf: jax.make_array_from_process_local_data(self.rows, np.asarray(leaf)), batch)

    def gather(self, tree: Any) -> Any:
        """A placed state with a whole copy on each device."""
        return jax.device_put(tree, self.copies)

    def local(self, tree: Any) -> Any:
        """A placed state, whole, on one device of this process."""
        return jax.tree.map(lambda leaf: leaf.addressable_data(0), self.gather(tree))


def _place(array: Any, sharding: NamedSharding) -> jax.Array:
    host = np.asarray(array)
    return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])
