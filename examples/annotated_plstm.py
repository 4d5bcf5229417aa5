# %% [markdown]
# # pLSTM, annotated
#
# This page goes through [pLSTM](https://arxiv.org/abs/2506.11997) by running it: the two equations, the gating
# matrix, P- and D-mode, four graphs, a layer, a model and its training. It needs the paper and no knowledge of this
# repository, and takes about a minute on one core: `.venv/bin/python examples/annotated_plstm.py` in a clone, after
# `make setup`.
#
# The page is made from [annotated_plstm.py](annotated_plstm.py) by `make examples`. The script also opens as a
# notebook in VS Code, and in Jupyter with Jupytext.

# %%
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from flax import nnx

import plstm
from data.arrow_pointing.geometry import ArrowVariant, render
from plstm.drawing import STYLE
from plstm.models import VisionConfig, build_model
from plstm.nn import PLSTMMixer
from plstm.ops.dag import Dag, DagGates, normalise_transitions, plstm_dag
from plstm.ops.grid import GridGates, gating_matrix, plstm2d
from plstm.ops.sequence import SequenceGates, gating_matrix_1d

plt.style.use(["default", STYLE])
rng = np.random.default_rng(0)

# %% [markdown]
# ## The recurrence
#
# Inputs and outputs live on the nodes n of a directed acyclic graph, cell states C on its edges e. Each node has a
# query q, a key k and a value v. Three kinds of gates are numbers that a layer computes from its input: the source S,
# from a node to an edge that leaves it; the transition T, from an edge e' to an edge e that starts where e' ends; and
# the mark M, from an edge to the node in which it ends.
#
#     C[e] = sum over e' into n of T[e', e] C[e']  +  S[e] k[n] v[n]^T          n: the node that e leaves    (1)
#     h[n] = q[n] (sum over e into n of M[e] C[e])  +  D[n] (q[n] k[n]) v[n]                                 (2)
#
# The paper's Equation 2 ends in V_k, where V_v is meant, and its Equation 1 writes the indices of T the other way
# round than the rest of its text. Queries are scaled by 1 / sqrt(d), which the paper does not say.
#
# A pair (e', e) is an edge of the line graph. `Dag` lists them all: number l joins edge `line_from[l]` to edge
# `line_to[l]`.


# %%
def recurrence(q, k, v, gates, direct, dag):
    """Equations 1 and 2 as they stand: the nodes in topological order."""
    cells = np.zeros((dag.num_edges, k.shape[1], v.shape[1]))
    hidden = direct[:, None] * np.sum(q * k, axis=1, keepdims=True) * v
    for n in np.argsort(dag.rank):
        for e in np.flatnonzero(dag.head == n):
            hidden[n] += q[n] @ (gates.mark[e] * cells[e])  # Equation 2
        for e in np.flatnonzero(dag.tail == n):
            cells[e] = gates.source[e] * np.outer(k[n], v[n])  # Equation 1
            for line in np.flatnonzero(dag.line_to == e):
                cells[e] += gates.transition[line] * cells[dag.line_from[line]]
    return hidden / np.sqrt(q.shape[1])


# %% [markdown]
# ## The gating matrix
#
# All of this is linear in the values. So a node hears from an earlier one through a single number, the sum over all
# paths from one to the other of source, transitions and mark:
#
#     h[n] = sum over n' of G[n', n] (q[n] k[n']) v[n']        G = S (1 + T + T^2 + ...) M                   (3)
#
# To this comes the node's own D. Here S is a matrix from nodes to edges, T from edges to edges and M from edges to
# nodes. As the graph has no cycle, some power of T is zero, and the sum is the inverse of 1 - T. It takes a line, but
# time cubic in the edges; fast forms use the structure of the graph.


# %%
def gating(gates, dag):
    """Equation 3: G [N, N], source node, then target node."""
    nodes = np.arange(dag.num_nodes)
    source = gates.source * (nodes[:, None] == dag.tail)
    transition = np.zeros((dag.num_edges, dag.num_edges))
    transition[dag.line_from, dag.line_to] = gates.transition
    mark = gates.mark[:, None] * (dag.head[:, None] == nodes)
    return source @ np.linalg.inv(np.eye(dag.num_edges) - transition) @ mark


diamond = Dag.from_edges(5, [(0, 1), (0, 2), (1, 3), (2, 3), (3, 4)])  # pairs (tail, head)
print(gating(DagGates(source=np.ones(5), transition=np.full(4, 0.5), mark=np.ones(5)), diamond))

# %% [markdown]
# Two paths lead from node 0 to node 4, each with two transitions of 0.5, so `G[0, 4]` is 0.5.
#
# With G at hand pLSTM is attention without the softmax: similarities times G. This is how `plstm_dag` computes it,
# where the graph is not too large. It gives the same numbers as the recurrence. Compiled functions take a graph as
# `dag.packed`, a tree of arrays; `pack` puts many graphs into one.


# %%
def draw_inputs(dag, dim=4):
    """Random q, k, v, gates and direct terms for a graph."""
    q, k, v = rng.normal(size=(3, dag.num_nodes, dim))
    source, mark = rng.uniform(-1, 1, size=(2, dag.num_edges))
    transition = rng.uniform(-1, 1, size=len(dag.line_to))
    return q, k, v, DagGates(source, transition, mark), rng.random(dag.num_nodes)


def agree(first, second):
    return bool(np.allclose(first, second, atol=1e-4))


q, k, v, gates, direct = draw_inputs(diamond)
expected = recurrence(q, k, v, gates, direct, diamond)
weights = (gating(gates, diamond) + np.diag(direct)) * (k @ q.T) / np.sqrt(q.shape[1])
print("by the gating matrix:", agree(weights.T @ v, expected))
print("plstm_dag:", agree(jax.jit(plstm_dag)(q, k, v, gates, direct, diamond.packed), expected))

# %% [markdown]
# ## Grids
#
# An image is a grid of nodes, each with an edge to the right and an edge down. The other three directions are mirror
# images with gates of their own, and the four outputs are added. A node has eight gates, named by the edges that they
# join: `s_r` is the source of the right edge, `t_dl` the transition to the lower edge from the left one, `m_u` the
# mark of the upper edge. In `GridGates` each is an array [..., 4 directions, rows, columns].
#
# The cell below gives the same random gates to `plstm2d` and, edge by edge, to the recurrence above. Sources of the
# other three directions are zero, so that these stay silent.


# %%
def grid_edges(*shape):
    """The edges of a grid of any dimension: from each node to the next one along each axis."""
    nodes = np.arange(np.prod(shape)).reshape(shape)
    ends = [(nodes.take(range(n - 1), axis), nodes.take(range(1, n), axis)) for axis, n in enumerate(shape)]
    return np.concatenate([np.stack([tail.ravel(), head.ravel()], axis=1) for tail, head in ends])


rows, columns = 4, 5
grid = Dag.from_edges(rows * columns, grid_edges(rows, columns))
q, k, v, _, direct = draw_inputs(grid)
gates = GridGates(*rng.uniform(-1, 1, size=(8, 4, rows, columns)))
gates.s_r[1:] = gates.s_d[1:] = 0

s_r, s_d, t_rl, t_ru, t_dl, t_du, m_l, m_u = (gate[0].ravel() for gate in gates)
down = grid.head - grid.tail == columns  # of each edge; the others lead right
n = grid.head[grid.line_from]  # where the two edges of a line edge meet
to_right = np.where(down[grid.line_from], t_ru[n], t_rl[n])
to_lower = np.where(down[grid.line_from], t_du[n], t_dl[n])
edge_gates = DagGates(
    source=np.where(down, s_d[grid.tail], s_r[grid.tail]),
    transition=np.where(down[grid.line_to], to_lower, to_right),
    mark=np.where(down, m_u[grid.head], m_l[grid.head]),
)
on_grid = (x.reshape(rows, columns, -1) for x in (q, k, v))
hidden = jax.jit(plstm2d)(*on_grid, gates, direct.reshape(rows, columns))
print("plstm2d:", agree(hidden.reshape(len(v), -1), recurrence(q, k, v, edge_gates, direct, grid)))

# %% [markdown]
# ## P-mode and D-mode
#
# The number of paths between two nodes of a grid grows exponentially with their distance. If all transitions are 1,
# so does G. The paper has two remedies. The columns of the matrix below are the edges that a node is entered by, left
# and upper, and its rows the edges that it is left by, right and lower.
#
#     P-mode (Equation 5)                     D-mode
#     gamma [   alpha      alpha   ]          gamma [ 1  0 ]
#           [ 1 - alpha  1 - alpha ]                [ 1  1 ]
#
# * In **P-mode** what enters a node is divided between its two outgoing edges: columns sum to gamma, which is at
#   most 1. A signal travels along a direction set by alpha and widens slowly: its peak decays as one over the square
#   root of the distance.
# * In **D-mode** one transition is zero everywhere. Then one path joins any two nodes, right first and then down, and
#   with gamma = 1 a node reaches everything below and to the right of it, undiminished.
#
# Equation 5 leaves the sources open. Here they are alpha and 1 - alpha. The paper's released code, and so this
# repository's default, uses another P-mode; see [deviations](../docs/deviations.md#model).


# %%
def uniform_gates(side, alpha=None, gamma=1.0, directions=1):
    """A grid whose nodes all have the same gates: P-mode with an alpha, else D-mode."""
    if alpha is None:
        values = dict(s_r=1, s_d=1, t_rl=gamma, t_ru=0, t_dl=gamma, t_du=gamma, m_l=1, m_u=1)
    else:
        right = gamma * alpha
        down = gamma * (1 - alpha)
        values = dict(s_r=alpha, s_d=1 - alpha, t_rl=right, t_ru=right, t_dl=down, t_du=down, m_l=1, m_u=1)
    gates = GridGates(**{name: jnp.full((4, side, side), value, jnp.float32) for name, value in values.items()})
    is_used = (jnp.arange(4) < directions)[:, None, None]
    return gates._replace(s_r=gates.s_r * is_used, s_d=gates.s_d * is_used)


matrix = jax.jit(gating_matrix)
print("from corner to corner of a grid of    4 x 4    8 x 8  16 x 16")
unlimited = [uniform_gates(side)._replace(t_ru=jnp.ones((4, side, side))) for side in (4, 8, 16)]
p_mode = [uniform_gates(side, alpha=0.5) for side in (4, 8, 16)]
d_mode = [uniform_gates(side) for side in (4, 8, 16)]
for name, grids in {"all transitions 1": unlimited, "P-mode, alpha = 0.5": p_mode, "D-mode": d_mode}.items():
    print(f"{name:34}", *(f"{matrix(gates)[0, 0, -1, -1]:8.2g}" for gates in grids))

# %% [markdown]
# What one node (the circle) passes on in a layer, as in the paper's Figures 1 and 3. A convolution reaches its
# neighbours and attention everything, without regard to place. A scan line, which reads the image row by row as a
# sequence, reaches along its own row, but the node below is a whole row away. The last picture has two layers, P and
# then D with gamma = 0.85, in all four directions, as models have them.

# %%
side = 17
middle = side // 2
offset = np.abs(np.indices((side, side)) - middle)
scan = gating_matrix_1d(SequenceGates(*jnp.array([1.0, 0.96, 1.0])[:, None] * jnp.ones(side * side)))
p_layer, d_layer = (matrix(uniform_gates(side, alpha, 0.85, directions=4)) for alpha in (0.7, None))
reached = {
    "convolution, 3 x 3": (offset.max(axis=0) <= 1) * 1.0,
    "attention": np.ones((side, side)),
    "scan line": scan[middle * side + middle].reshape(side, side),
    "P-mode, alpha = 0.7": matrix(uniform_gates(side, 0.7))[middle, middle],
    "D-mode, gamma = 0.85": matrix(uniform_gates(side, gamma=0.85))[middle, middle],
    "P-mode, then D-mode": jnp.tensordot(p_layer[middle, middle], d_layer, axes=2),
}
figure, panels = plt.subplots(2, 3, figsize=(6.6, 4.7), layout="constrained", num="What one node passes on in a layer")
for axes, (title, weight) in zip(panels.flat, reached.items(), strict=True):
    axes.imshow(np.sqrt(weight / weight.max()), cmap="Blues", vmin=0, vmax=1)
    axes.plot(middle, middle, "o", color="tab:red", markersize=5)
    axes.set(title=title, xticks=[], yticks=[])
    axes.spines[:].set(visible=True, color="0.7")

# %% [markdown]
# Colours show the square root of the weight, in each picture relative to its largest.
#
# ## Other graphs
#
# `plstm_dag` takes any directed acyclic graph. Here are a sequence, a tree, a grid in three dimensions and a
# molecule, caffeine, whose bonds lead from the atom written first to the later one. Its numbering is that of the
# SMILES string `CN1C=NC2=C1C(=O)N(C)C(=O)N2C`.
#
# On a graph the P-mode divides the transitions that leave an edge by 0.5 plus the sum of their magnitudes, so that
# they sum to less than 1 (Equation 4). The D-mode keeps a multitree of the line graph, where at most one path joins
# any two edges. A graph without directions, such as a molecule, gets them from the order of its nodes, and some layers
# read it with all edges reversed (`dag.reverse()`).

# %%
bonds = "0-1 1-2 2-3 3-4 4-5 1-5 5-6 6-7 6-8 8-9 8-10 10-11 10-12 4-12 12-13"
atoms = "2.1,1.8 1.8,.8 2.4,0 1.8,-.8 .9,-.5 .9,.5 0,1 0,2 -.9,.5 -1.7,1 -.9,-.5 -1.7,-1 0,-1 0,-2"
depth = np.log2(np.arange(1, 16)).astype(int)
z, y, x = np.indices((3, 3, 3)).reshape(3, -1)
graphs = {  # edges, and where the nodes are drawn
    "chain": (grid_edges(8), [(n, np.sin(n)) for n in range(8)]),
    "tree": ([((n - 1) // 2, n) for n in range(1, 15)], [((n + 1.5) / 2**d, -d) for n, d in enumerate(depth)]),
    "3 x 3 x 3 grid": (grid_edges(3, 3, 3), np.stack([x + 0.4 * z, -y - 0.25 * z], axis=1)),
    "caffeine": ([bond.split("-") for bond in bonds.split()], [atom.split(",") for atom in atoms.split()]),
}


operator = jax.jit(plstm_dag)


def passed_on(dag, mode):
    """What node 0 passes on to each node where sources and marks are 1, by one-hot values."""
    ones = jnp.ones((dag.num_nodes, 1))
    large = jnp.full(len(dag.line_to), 100.0)  # so that the 0.5 hardly counts
    transition = normalise_transitions(large, dag) if mode == "P" else jnp.where(dag.multitree, 1.0, 0.0)
    gates = DagGates(jnp.ones(dag.num_edges), transition, jnp.ones(dag.num_edges))
    return operator(ones, ones, jnp.eye(dag.num_nodes), gates, jnp.zeros(dag.num_nodes), dag.packed)[:, 0]


figure, panels = plt.subplots(2, 4, figsize=(7.6, 4.2), layout="constrained", num="What node 0 of a graph passes on")
for column, (name, (edges, places)) in enumerate(graphs.items()):
    places = np.array(places, float)
    places = (places - places.min(axis=0)) / np.ptp(places, axis=0)
    dag = Dag.from_edges(len(places), np.array(edges, int))
    inputs = draw_inputs(dag)
    equal = agree(operator(*inputs, dag.packed), recurrence(*inputs, dag))
    print(f"{name:14} {dag.num_nodes} nodes, {dag.num_edges} edges, equals the recurrence: {equal}")
    for axes, mode in zip(panels[:, column], "PD", strict=True):
        start, end = places[dag.tail], places[dag.head]
        axes.quiver(*start.T, *(end - start).T, angles="xy", scale_units="xy", scale=1, color="0.7", width=0.01)
        weight = passed_on(dag, mode)
        colours = np.sqrt(weight / weight.max())
        axes.scatter(*places.T, c=colours, cmap="Blues", vmin=0, vmax=1, edgecolor="0.3", zorder=2)
        axes.plot(*places[0], "o", color="tab:red", zorder=3)
        axes.set(title=f"{name}, {mode}-mode", aspect="equal", xlim=(-0.1, 1.1), ylim=(-0.1, 1.1))
        axes.axis("off")

# %% [markdown]
# Colours are those of the picture above. In P-mode what leaves node 0 is divided at each branch, and the corner of
# the grid collects it again. In D-mode nothing is divided, and a node where several edges end hears from each of
# them.
#
# ## A layer, a model, training
#
# `PLSTMMixer` computes queries, keys, values and gates from its input, applies the operator and projects the result.
# It stands where a Transformer has attention. `GraphMixer` is its counterpart on graphs.

# %%
mixer = PLSTMMixer(64, 4, mode="P", rngs=nnx.Rngs(0))  # channels, heads
x = jax.random.normal(jax.random.key(0), (2, 6, 8, 64))
print(nnx.jit(mixer)(x).shape)

# %% [markdown]
# A model is built from its config: here pLSTM-Vis for images of 48 pixels, with a P-layer and a D-layer.
#
# The paper's task, whether an arrow points at a circle, takes thousands of steps. Here is an easier question about
# its pictures, so that 96 steps will do: is the circle in the right half?

# %%
variant = ArrowVariant(size=48, object_scale=0.25)
arrows = list(variant.arrows("train", 2560))
pictures = np.stack([render(arrow, variant.canvas("train")) for arrow in arrows])  # 255 is white, 0 is black
images = (pictures[..., None] == 0).astype(np.float32)
labels = np.array([arrow.cx > 24 for arrow in arrows]).astype(int)

config = VisionConfig(image_size=48, channels=1, classes=2, patch_size=8, dim=32, depth=2, heads=2, dtype="float32")
model = build_model(config, 1)
optimizer = nnx.Optimizer(model, optax.adamw(3e-3), wrt=nnx.Param)


def loss(model, images, labels):
    return optax.softmax_cross_entropy_with_integer_labels(model(images), labels).mean()


@nnx.jit
def train_step(model, optimizer, images, labels):
    optimizer.update(model, nnx.grad(loss)(model, images, labels))


@nnx.jit
def accuracy(model, images, labels):
    return jnp.mean(model(images).argmax(axis=-1) == labels)


print(f"accuracy before: {accuracy(model, images[2048:], labels[2048:]):.2f}")
for step in range(96):
    batch = slice(64 * (step % 32), 64 * (step % 32) + 64)
    train_step(model, optimizer, images[batch], labels[batch])
print(f"accuracy after:  {accuracy(model, images[2048:], labels[2048:]):.2f}")

# %% [markdown]
# `plstm.save` writes a model with its config into one file, and `plstm.load` makes the model from it. The loop above
# fine-tunes a loaded model as well.

# %%
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "half.safetensors"
    plstm.save(model, path, class_names=["left half", "right half"])
    loaded = plstm.load(path)
print(f"accuracy loaded: {accuracy(loaded, images[2048:], labels[2048:]):.2f}")

# %% [markdown]
# [results/weights](../results/weights) has trained models. One is a pLSTM on sequences that says after each bit whether
# there were more ones so far (1) or more zeros (0); after the sixth it is a tie:

# %%
majority = plstm.load(Path(plstm.__file__).parents[1] / "results/weights/majority-plstm.safetensors")
bits = jnp.array([[1, 1, 0, 1, 0, 0, 0, 0, 0]])
print(bits, nnx.jit(majority)(bits).argmax(axis=-1), sep="\n")
