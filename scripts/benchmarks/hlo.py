"""What the kernels of an optimised GPU program move and compute, counted from XLA's text of it.

A kernel is an instruction that XLA launches: a fusion, a product, a copy, a collective. Those in a loop count as often
as it runs. A fusion reads of its operands what it uses: of a slice the slice, not the whole array. It writes in place.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

WIDTHS = {"pred": 1, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "bf16": 2, "f16": 2, "f32": 4, "s32": 4, "u32": 4}
WIDTHS |= {"f64": 8, "s64": 8, "u64": 8}
ARRAY = re.compile(r"\b(" + "|".join(WIDTHS) + r")\[([\d,]*)\]")
INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.-]+) = (\(.*?\)|\S+) ([\w-]+)\((.*)$")
NO_KERNEL = {
    "parameter",
    "constant",
    "tuple",
    "get-tuple-element",
    "bitcast",
    "after-all",
    "partition-id",
    "replica-id",
}
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast")
PRODUCTS = {"dot", "custom-call", "convolution"}
SLICES = {"slice", "dynamic-slice", "gather"}


@dataclass
class Instruction:
    name: str
    shape: str  # as written, a tuple's in brackets
    kind: str
    operands: list[str]
    rest: str  # attributes and metadata; of a parameter its number
    is_root: bool

    @cached_property
    def bytes(self) -> int:
        return _bytes(ARRAY.findall(self.shape))

    @cached_property
    def elements(self) -> int:
        return sum(count_elements(sides) for _, sides in ARRAY.findall(self.shape))

    @property
    def sides(self) -> list[int]:
        return [int(side) for side in ARRAY.search(self.shape)[2].split(",") if side]

    def attribute(self, key: str) -> str | None:
        found = re.search(rf"\b{key}=%?([\w.-]+)", self.rest)
        return found and found[1]


@dataclass
class Kernel:
    kind: str  # one of `kind_of`, or the collective's name
    times: int
    read: float  # bytes each time
    written: float
    flops: int  # of products
    precision: str | None  # of these: bf16, tf32, f32
    shape: str
    functions: list[str]  # Python functions that wrote it, the innermost first

    @property
    def bytes(self) -> float:
        return self.times * (self.read + self.written)


class Module:
    """The text of an optimised module, as `Compiled.as_text` gives it."""

    def __init__(self, text: str):
        self.computations: dict[str, dict[str, Instruction]] = {}
        self._frames, self._locations, self._functions = {}, {}, {}
        body, table = None, None
        for line in text.splitlines():
            if line in ("FunctionNames", "FileLocations", "StackFrames", "FileNames"):
                table = line
            elif table and (entry := re.match(r"(\d+) (.*)$", line)):
                self._add_frame(table, int(entry[1]), entry[2])
            elif line.endswith("{") and not line.startswith((" ", "HloModule")):
                table, name = None, re.match(r"(?:ENTRY )?%?([\w.-]+)", line)[1]
                body = self.computations[name] = {}
                if line.startswith("ENTRY"):
                    self.entry = name
            elif body is not None and (found := INSTRUCTION.match(line)):
                root, name, shape, kind, rest = found.groups()
                end = _closing(rest)
                operands = re.findall(r"%([\w.-]+)", rest[:end])
                body[name] = Instruction(name, shape, kind, operands, rest[end:], bool(root))

    def _add_frame(self, table: str, number: int, text: str) -> None:
        if table == "FunctionNames":
            self._functions[number] = text.strip('"')
        elif table == "FileLocations":
            self._locations[number] = int(re.search(r"function_name_id=(\d+)", text)[1])
        elif table == "StackFrames":
            location, parent = re.findall(r"_id=(\d+)", text)
            self._frames[number] = int(location), int(parent) - 1

    def functions(self, instruction: Instruction) -> list[str]:
        found, number = [], int(instruction.attribute("stack_frame_id") or 0)
        while number in self._frames:
            location, parent = self._frames[number]
            found.append(self._functions[self._locations[location]])
            number = parent
        return found

    def kernels(self, name: str | None = None, times: int = 1) -> Iterator[Kernel]:
        """All kernels of a computation and of those that it runs."""
        body = self.computations[name or self.entry]
        for one in body.values():
            if one.kind == "while":
                count = re.search(r'known_trip_count":\{"n":"(\d+)"', one.rest)
                yield from self.kernels(one.attribute("body"), times * int(count[1] if count else 1))
            elif one.kind == "call":
                yield from self.kernels(one.attribute("to_apply"), times)
            elif one.kind == "conditional":  # the costs of its first branch
                branch = re.search(r"(?:branch_computations=\{|true_computation=)%?([\w.-]+)", one.rest)[1]
                yield from self.kernels(branch, times)
            elif one.kind not in NO_KERNEL and not one.kind.endswith("-done"):
                yield self._kernel(one, body, times)

    def _kernel(self, one: Instruction, body: dict[str, Instruction], times: int) -> Kernel:
        inner = self.computations[one.attribute("calls")] if one.kind == "fusion" else {one.name: one}
        if one.kind == "fusion":
            read, written = _fused_bytes(inner)
        elif one.kind in SLICES:
            read, written = one.bytes, one.bytes
        elif one.kind == "dynamic-update-slice":
            read = written = body[one.operands[1]].bytes
        else:
            read, written = sum(body[name].bytes for name in one.operands if name in body), one.bytes
        if "__cublas" in one.rest:  # its result and a workspace
            written = _bytes(ARRAY.findall(one.shape)[:1])
        products = [part for part in inner.values() if part.kind == "dot" or "__cublas" in part.rest]
        table = inner if one.kind == "fusion" else body
        flops = sum(_product_flops(part, table) for part in products)
        precision = _precision(products[0], table) if products else None
        return Kernel(kind_of(one, inner), times, read, written, flops, precision, one.shape, self.functions(one))


def kind_of(one: Instruction, inner: dict[str, Instruction]) -> str:
    """What a kernel does, in a word."""
    kinds = {part.kind for part in inner.values()} - {"parameter", "tuple", "constant"}
    collective = next((name for name in COLLECTIVES if one.kind.startswith(name)), None)
    if collective:
        return collective
    if kinds <= {"broadcast", "copy", "bitcast", "iota"} and not one.operands:
        return "fill"
    for kind, marks in {
        "product": PRODUCTS,
        "stack a layer's residual": {"dynamic-update-slice"},
        "reduce": {"reduce"},
        "transpose": {"transpose", "copy"},
        "pad and concatenate": {"pad", "concatenate"},
    }.items():
        if kinds & marks:
            return kind
    return "elementwise"


def _fused_bytes(inner: dict[str, Instruction]) -> tuple[float, float]:
    """Bytes that a fusion reads and writes: each operand as far as the result needs its elements."""
    root = next(part for part in inner.values() if part.is_root)
    needed: dict[str, float] = defaultdict(float)
    in_place, written = set(), 0
    for part in [inner[name] for name in root.operands] if root.kind == "tuple" else [root]:
        needed[part.name] = part.elements
        updated = part
        while updated.kind in ("bitcast", "convert", "copy"):
            updated = inner.get(updated.operands[0], root)
        if updated.kind == "dynamic-update-slice":
            in_place.add(updated.name)
            written += inner[updated.operands[1]].bytes
        else:
            written += part.bytes
    for part in reversed(list(inner.values())):
        part_needed = min(needed[part.name], part.elements)
        share = part_needed / max(part.elements, 1)
        for place, name in enumerate(part.operands):
            if name not in inner or part.kind == "tuple" or (part.name in in_place and place == 0):
                continue
            is_sliced = part.kind in SLICES and place == 0
            needed[name] += part_needed if is_sliced else share * inner[name].elements
    parameters = [part for part in inner.values() if part.kind == "parameter" and part.elements]
    return sum(part.bytes * min(needed[part.name] / part.elements, 1) for part in parameters), written


def _product_flops(product: Instruction, table: dict[str, Instruction]) -> int:
    sides = table[product.operands[0]].sides
    axes = re.search(r'lhs_contracting_dim(?:s=\{|ensions":\[)([\d,"]*)', product.rest)[1].replace('"', "")
    return 2 * math.prod(product.sides) * math.prod(sides[int(axis)] for axis in axes.split(",") if axis)


def _precision(product: Instruction, table: dict[str, Instruction]) -> str:
    """How a GPU multiplies: float32 operands in TF32, unless the highest precision is asked for."""
    if "f32" not in table[product.operands[0]].shape:
        return ARRAY.search(table[product.operands[0]].shape)[1]
    return "f32" if "highest" in product.rest.lower() else "tf32"


def _bytes(arrays: list[tuple[str, str]]) -> int:
    return sum(WIDTHS[kind] * count_elements(sides) for kind, sides in arrays)


def count_elements(sides: str) -> int:
    return math.prod(int(side) for side in sides.split(",") if side)


def _closing(text: str) -> int:
    """The place of the bracket that closes the list of operands."""
    depth = 1
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if not depth:
            return place
    return len(text)
