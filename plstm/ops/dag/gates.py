"""The gates of a directed acyclic graph, of which a sequence is one."""

from typing import NamedTuple

from jax import Array

DAG_AXES = "q, k [..., N, d_k]; v [..., N, d_v]; direct [..., N]; source [..., E]; transition [..., L]; mark [..., E]"


class DagGates(NamedTuple):
    """The gates of a DAG of E edges and L line edges, or those of a sequence, each [..., T]."""

    source: Array  # [..., E]
    transition: Array  # [..., L]
    mark: Array  # [..., E]
