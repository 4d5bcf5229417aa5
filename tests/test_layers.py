"""Imports go one way: a room may import from those below it, and from nothing else of the project."""

import ast
from graphlib import TopologicalSorter

from tests.commands import ROOT, SOURCES

# From the bottom to the top; a room on a line with others may not import them.
LAYERS = [
    ["plstm.errors"],
    ["plstm.files"],
    ["data", "plstm.ops"],
    ["plstm.config", "plstm.drawing", "plstm.nn"],
    ["plstm.models"],
    ["plstm.training"],
    ["plstm.tasks"],
    ["plstm.runs"],
    ["plstm.studies"],
    ["train", "eval"],
    ["scripts"],
]
ALONE = {"plstm.errors", "plstm.files"}  # all that these may import of the project: data, plstm.ops
LEVELS = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}
# Function-level imports are for packages that are optional, or heavy and seldom used.
HEAVY = {"absl", "array_record", "grain", "jax", "matplotlib", "scipy", "simplejpeg", "sklearn", "wandb"}
HEAVY |= {"tensorflow_datasets", "PIL", "unittest", "urllib", "zipfile"}


def room_of(module: str) -> str | None:
    """The room that a dotted name lies in; None for other packages."""
    parts = module.split(".")
    return next((name for name in (".".join(parts[:2]), parts[0]) if name in LEVELS), None)


def modules() -> dict[str, ast.Module]:
    """Dotted name -> syntax tree of every source file."""
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in SOURCES}
    return {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in names.items()}


def imports(tree: ast.AST) -> list[tuple[ast.stmt, str]]:
    """(statement, dotted name) of every import, those in functions and under TYPE_CHECKING included."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide where a module lies"
            found += [(node, f"{node.module}.{alias.name}") for alias in node.names]
    return found


def test_imports_go_down_and_never_in_a_circle():
    wrong, graph = [], {}
    trees = modules()
    for name, tree in trees.items():
        own = room_of(name)
        targets = [(node.lineno, target, room_of(target)) for node, target in imports(tree)]
        for line, target, room in targets:
            if room is None or own is None:
                continue
            graph.setdefault(name, set()).add(target if target in trees else target.rpartition(".")[0])
            if room != own and (LEVELS[room] >= LEVELS[own] or (own in ("data", "plstm.ops") and room not in ALONE)):
                wrong.append(f"{name}, line {line}: imports {target}")
    assert not wrong
    TopologicalSorter(graph).prepare()  # raises CycleError


def test_functions_import_only_packages_that_are_optional_or_heavy():
    for name, tree in modules().items():
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                found = {target.split(".")[0] for _, target in imports(function)}
                assert found <= HEAVY, f"{name}, {getattr(function, 'name', 'lambda')}: imports {found - HEAVY}"
