"""Names for the leaves of a tree of arrays."""

from collections.abc import Callable
from typing import Any

import jax


def named_leaves(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> dict[str, Any]:
    """Dotted name, such as groups.blocks.0.mlp.up.kernel -> leaf, in the order of `jax.tree.leaves`.

    The "value" that flax.nnx adds below each of its variables is not part of a name.
    """
    leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_leaf)
    return {".".join(_part(key) for key in path if not _is_value(key)): leaf for path, leaf in leaves}


def _is_value(key: Any) -> bool:
    return isinstance(key, jax.tree_util.GetAttrKey) and key.name == "value"


def _part(key: Any) -> str:
    return str(next(getattr(key, kind) for kind in ("key", "name", "idx") if hasattr(key, kind)))
