"""pLSTM on two-dimensional grids (arXiv 2506.11997, Section 3.3 and Appendix D)."""

from plstm.ops.grid.dispatch import METHODS, WIDEST_FUSED, plstm2d
from plstm.ops.grid.gates import STRUCTURES, GridGates
from plstm.ops.grid.matrix import FORMS, gating_matrix
from plstm.ops.grid.recurrence import gating_matrix_oracle, plstm2d_oracle
from plstm.ops.grid.tracking import plstm2d_tracking

__all__ = [
    "FORMS",
    "METHODS",
    "STRUCTURES",
    "WIDEST_FUSED",
    "GridGates",
    "gating_matrix",
    "gating_matrix_oracle",
    "plstm2d",
    "plstm2d_oracle",
    "plstm2d_tracking",
]
