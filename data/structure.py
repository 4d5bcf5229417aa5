"""What a byte of Python code asks of a model that reads the bytes before it: names, closing brackets, indentation."""

import re
from collections import Counter
from keyword import iskeyword
from typing import NamedTuple

import numpy as np

NAME = re.compile(rb"(?<!\w)[A-Za-z_]\w{2,}")
BRACKET = re.compile(rb"[()\[\]{}\0]")  # or a file's end, which is 0
CLOSING = {ord(opening): ord(closing) for opening, closing in ("()", "[]", "{}")}
LINE = re.compile(rb"([\n\0])( *)(?=[^\s#\0])")  # with something on it
MOST = 3  # occurrences that are told apart
DEEPEST = 2


class Marks(NamedTuple):
    """Of the bytes of a window after its first, int32 [bytes - 1]; 0 where there is nothing to ask."""

    occurrence: np.ndarray  # of a name of three letters or more: 1 where the window has it first, 2, 3 or later
    depth: np.ndarray  # of a bracket that closes another of the window: 1, 2 or deeper
    indent: np.ndarray  # where an indentation ends that is less than that of the line before: its width + 1


def mark(window: bytes, before: bytes = b"\0") -> Marks:
    """before: the byte before the window, which says whether a name begins with it. Words in comments and strings count
    as names, brackets there as brackets."""
    marks = np.zeros((3, len(window)), np.int32)
    occurrence, depth, indent = marks
    counts: Counter[bytes] = Counter()
    for match in NAME.finditer(before + window, 1):
        if not iskeyword(match[0].decode("ascii")):
            counts[match[0]] += 1
            occurrence[match.start() - 1 : match.end() - 1] = min(counts[match[0]], MOST)
    stack: list[int] = []
    for match in BRACKET.finditer(window):
        bracket = window[match.start()]
        if bracket in CLOSING:
            stack.append(CLOSING[bracket])
        elif stack and stack[-1] == bracket:
            depth[match.start()] = min(len(stack), DEEPEST)
            stack.pop()
        else:
            stack.clear()
    width_before = 0
    for match in LINE.finditer(window):
        width = len(match[2])
        if width < width_before and match[1] == b"\n":
            indent[match.end()] = width + 1
        width_before = width
    return Marks(*marks[:, 1:])
