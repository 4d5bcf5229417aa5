"""The models of the paper's Figure 2: their training steps beside pLSTM's and ViT's, and their operators' memory."""

from collections.abc import Callable, Iterator
from functools import partial

import jax

from plstm.ops.mamba2d import mamba2d
from plstm.ops.mlstm import mlstm
from plstm.ops.ss2d import ss2d
from plstm.runs.experiments import compose_experiment
from scripts.benchmarks import operators as ops
from scripts.benchmarks.models import compare_models
from scripts.benchmarks.operators import Row, compile_step, ratio
from scripts.benchmarks.sequences import draw, gradient_step

YARDSTICKS = ("plstm", "vit")
MODELS = ("efficientnet", "vil", "mamba2d", "2dmamba")
FULL = 192  # pixels a side of the images of arrow/*


def draw_scan(name: str, images: int, grid: int) -> tuple:
    """Arguments of a 2-D scan of the released width in its first stage, with step sizes as at the start."""
    dim, states, decays = (192, 16, 2) if name == "mamba2d" else (384, 1, 1)
    keys = iter(jax.random.split(jax.random.key(0), 8))
    normal = lambda channels: jax.random.normal(next(keys), (images, grid, grid, channels))  # noqa: E731
    steps = [jax.nn.softplus(normal(dim) - 4) for _ in range(decays)]
    a = [-jax.random.uniform(next(keys), (dim, states), minval=1, maxval=states + 1) for _ in range(decays)]
    return normal(dim), *steps, *a, normal(states), normal(states)


OPERATORS: dict[str, tuple[Callable, Callable]] = {  # of images and the side of a grid
    "mamba2d": (mamba2d, partial(draw_scan, "mamba2d")),
    "ss2d": (ss2d, partial(draw_scan, "ss2d")),
    # A grid of 48 x 48 is stage 1 of the others at the training size; ViL has 24 x 24 tokens at twice that.
    "mlstm": (partial(mlstm, chunk=48), lambda images, grid: draw("mlstm", images, 4, (grid // 2) ** 2, 96)),
}


def measure_baselines(
    repeats: int, groups=("arrow", "reduced"), models=MODELS, batch=2, grid=48, dtype="float32"
) -> Iterator[Row]:
    """Steps of Figure 2's models over pLSTM's and ViT's, on as many pixels of arrow/* as of reduced/*, in turns; memory
    an image of their operators, forward and backward."""
    for group in groups:
        names = (*YARDSTICKS, *models)
        configs = {name: compose_experiment(f"{group}/{name}", f"model.dtype={dtype}") for name in names}
        images = batch * (FULL // configs["vit"].data.size) ** 2
        found = compare_models({name: config.model for name, config in configs.items()}, images, repeats)
        row: Row = {"group": group, "images": images, **found}
        for name in models:
            for other in YARDSTICKS:
                row |= ratio(found, name, other, f"{name}_over_{other}")
        yield row
    for name, (operator, arguments) in OPERATORS.items():
        inputs = arguments(batch, grid)
        run, report = compile_step(gradient_step(operator), inputs)
        found = ops.compare({name: (partial(run, *inputs), report)}, repeats)[name]
        an_image = {f"{key}_bytes_an_image": found[f"{key}_bytes"] / batch for key in ("memory", "temporary")}
        yield {"operator": name, "grid": grid, **found, **an_image}
