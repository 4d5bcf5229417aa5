"""flax.nnx layers: gates, mixers, recurrent cells, feature maps, and what models share.

mixer = PLSTMMixer(64, 4, rngs=nnx.Rngs(0))  # on grids; GraphMixer on graphs, TrackingPLSTM on sequences
y = mixer(x)  # [batch, Y, X, 64] -> the same
"""

from plstm.nn.graph import GraphMixer
from plstm.nn.mixers import AttentionMixer, PLSTMMixer
from plstm.nn.recurrent import PRLSTM, PRRNN, Rows
from plstm.nn.sequence import MLSTM, SLSTM, CausalAttention, GatedDeltaNet, Mamba2, TrackingPLSTM
from plstm.nn.tracking import TrackingMixer

__all__ = [
    "MLSTM",
    "PRLSTM",
    "PRRNN",
    "SLSTM",
    "AttentionMixer",
    "CausalAttention",
    "GatedDeltaNet",
    "GraphMixer",
    "Mamba2",
    "PLSTMMixer",
    "Rows",
    "TrackingMixer",
    "TrackingPLSTM",
]
