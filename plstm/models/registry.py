"""Models by family: a config, a builder and the kind of input it takes. A run chooses by `model.family`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
from flax import nnx

from plstm.errors import UserError
from plstm.limits import ID_DIGITS
from plstm.models.efficientnet import EfficientNet, EfficientNetConfig
from plstm.models.graph import GraphConfig, graph_model
from plstm.models.languages import LanguageConfig, LanguageModel
from plstm.models.mamba2d import Mamba2D, Mamba2DConfig
from plstm.models.sequence import SequenceConfig, SequenceModel
from plstm.models.series import SeriesConfig, SeriesModel
from plstm.models.ss2d import SS2DConfig, SS2DModel
from plstm.models.vil import ViL, ViLConfig
from plstm.models.vision import VisionConfig, VisionModel
from plstm.nn.layers import resize
from plstm.nn.maps import bicubic
from plstm.preprocessing import Preprocessing


class Family(NamedTuple):
    """What the rest of the code needs to know about a family of models."""

    config: type  # a dataclass with a default for every field, among them `family`, and a `check` that raises UserError
    model: Callable[[Any, Mapping[str, int], nnx.Rngs], nnx.Module]  # of config, sizes that the data have, and rngs
    inputs: str  # what a batch holds, as in `Task.inputs`
    sizes: tuple[str, ...] = ()  # the names of those that `model` takes
    resize: Callable[[jax.Array, tuple[int, ...]], jax.Array] = resize  # of its position embedding to another grid


def _image_family(config: type, model: Callable[[Any, nnx.Rngs], nnx.Module], resize=resize) -> Family:
    return Family(config, lambda config, _, rngs: model(config, rngs), "images", resize=resize)


MODELS: dict[str, Family] = {
    "vision": _image_family(VisionConfig, VisionModel),
    "efficientnet": _image_family(EfficientNetConfig, EfficientNet),
    "mamba2d": _image_family(Mamba2DConfig, Mamba2D),
    "ss2d": _image_family(SS2DConfig, SS2DModel),
    "vil": _image_family(ViLConfig, ViL, bicubic),
    "graph": Family(GraphConfig, graph_model, "graphs", ("features", "classes")),
    "sequence": Family(SequenceConfig, SequenceModel, "tokens", ("vocabulary", "classes")),
    "series": Family(SeriesConfig, SeriesModel, "series"),
    "language": Family(LanguageConfig, LanguageModel, "languages", ("vocabulary", "classes")),
}


@dataclass(frozen=True)
class Info:
    """What a model is, how it is used and where its weights come from. Hashable, as nnx.jit needs it."""

    config: Any = field(compare=False)  # the architecture, such as a VisionConfig
    sizes: Mapping[str, int] = field(compare=False)  # see `Family`
    class_names: tuple[str, ...] = ()  # the meaning of the logits, in order; empty where it is not known
    preprocessing: Preprocessing | None = None  # from a picture to what the model takes; None where it is not known
    run: str = ""  # the id of the run that the weights are of; empty where they are of none
    step: int = 0  # of that run
    # The config of the training but for its model, as nested dictionaries; None where it is not known.
    training: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)
    sha256: str = field(default="", compare=False)  # of the weights as they were read, see `plstm.models.weights`

    @property
    def weights_id(self) -> str:
        """The run's id, of weights of none the first digits of their SHA-256."""
        return self.run or self.sha256[:ID_DIGITS]


def build_model(config: Any, key: jax.Array | int, sizes: Mapping[str, int] = MappingProxyType({})) -> Any:
    """The model of a config, its parameters drawn from `key` (an integer or a jax.random key); its `info` is an `Info`.
    Models of graphs take the sizes features and classes, those of tokens and languages vocabulary and classes.
    Raises UserError naming the key where the config does not fit together, or the size that is missing."""
    config.check()
    check_sizes(config, sizes)
    model: Any = MODELS[config.family].model(config, sizes, nnx.Rngs(key))
    model.info = Info(config, dict(sizes))
    return model


def check_sizes(config: Any, sizes: Mapping[str, int]) -> None:
    """Raises UserError where one is missing that a model of the config takes."""
    for name in MODELS[config.family].sizes:
        if name not in sizes:
            raise UserError(f"sizes: a model of family {config.family} needs {name!r}, and has {dict(sizes)}")


def named_variables(state: nnx.State) -> dict[str, nnx.Variable]:
    """A model's variables by their dotted names, such as head.kernel."""
    return {".".join(map(str, path)): variable for path, variable in nnx.to_flat_state(state)}
