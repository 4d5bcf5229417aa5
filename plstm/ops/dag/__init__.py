"""pLSTM on directed acyclic graphs (arXiv 2506.11997, Section 3)."""

from plstm.ops.dag.dispatch import METHODS, NORMS, normalise_transitions, plstm_dag
from plstm.ops.dag.gates import DagGates
from plstm.ops.dag.line_graph import Dag, PackedDags, pack
from plstm.ops.dag.oracle import plstm_dag_oracle, plstm_dag_tracking
from plstm.ops.dag.parts import plstm_dag_by_parts

__all__ = [
    "METHODS",
    "NORMS",
    "Dag",
    "DagGates",
    "PackedDags",
    "normalise_transitions",
    "pack",
    "plstm_dag",
    "plstm_dag_by_parts",
    "plstm_dag_oracle",
    "plstm_dag_tracking",
]
