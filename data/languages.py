"""The fifteen formal languages of "Neural Networks and the Chomsky Hierarchy" (ICLR 2023), also those of arXiv
2605.17108: token rows of one length and the answers that a model has to give after them.

    python -m data.languages list
    python -m data.languages sample missing_duplicate --length 9 --count 3 --seed 0
    python -m data.languages answer parity_check 1 0 1

Rows are int8 [rows, T], answers int8 [rows, L]. Rows follow the distribution of the released samplers, and the answer
is a function of the row.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.random import RandomState

from data.commands import Sampler, run_commands
from plstm.errors import run_script

TERMINATOR = 2  # the class after the last digit of answers that may be shorter than their room
LEVELS = {"R": "regular", "DCF": "deterministic context-free", "CS": "context-sensitive"}


@dataclass(frozen=True)
class Language(Sampler):
    """One task. A row of length T has tokens below `vocabulary` and an answer of `answer_length(T)` classes."""

    level: str  # of LEVELS
    classes: int
    answer_length: Callable[[int], int]
    terminated: bool = False  # accuracy counts the places up to the first TERMINATOR only

    @property
    def chance(self) -> float:
        return 1 / (5 if self.classes == 5 else 2)


# ---------------------------------------------------------------------- rows
def tokens_below(vocabulary: int) -> Callable[[RandomState, int, int], np.ndarray]:
    """The sampler of independent, uniform tokens."""
    return lambda rng, length, rows: rng.randint(0, vocabulary, (rows, length), np.int8)


def redraw(rng: RandomState, bits: np.ndarray, is_bad: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Bits with the rows that are bad drawn again until none is; `is_bad`: bits [rows, n] -> bool [rows]."""
    while (bad := is_bad(bits)).any():
        bits[bad] = rng.randint(0, 2, (bad.sum(), bits.shape[1]), np.int8)
    return bits


def draw_operations(rng: RandomState, length: int, rows: int) -> np.ndarray:
    """Digits with + - x (5, 6, 7) between; an even length loses its last token."""
    drawn = rng.randint(0, 5, (rows, length - 1 + length % 2), np.int8)
    drawn[:, 1::2] = rng.randint(5, 8, drawn[:, 1::2].shape, np.int8)
    return drawn


def draw_stack(rng: RandomState, length: int, rows: int) -> np.ndarray:
    """The bits of a stack, bottom first, then actions: 2 pops, 3 pushes 0, 4 pushes 1."""
    bits = rng.randint(0, 2, (rows, length), np.int8)
    if length == 1:
        return bits
    is_action = np.arange(length) >= rng.randint(1, length, (rows, 1))
    return np.where(is_action, rng.randint(2, 5, (rows, length), np.int8), bits)


def draw_missing_duplicate(rng: RandomState, length: int, rows: int) -> np.ndarray:
    """A word twice, one of its bits hidden by 2; a 3 fills an odd length."""
    if length == 1:
        return np.ones((rows, 1), np.int8)
    drawn = np.tile(rng.randint(0, 2, (rows, length // 2), np.int8), 2)
    drawn[np.arange(rows), rng.randint(0, drawn.shape[1], rows)] = 2
    return np.pad(drawn, ((0, 0), (0, length % 2)), constant_values=3)


def draw_numbers(rng: RandomState, length: int, rows: int) -> np.ndarray:
    """Two positive binary numbers, lowest bit first, with a 2 between. Length 2: one number, 0 to 2; length 1: 0."""
    if length <= 2:
        number = rng.randint(0, 3, rows) * (length == 2)
        return np.stack([number & 1, number >> 1], axis=1)[:, :length].astype(np.int8)
    place = np.arange(length)  # digits of the first number
    digits = rng.randint(1, length - 1, (rows, 1))
    first = place < digits
    second = place > digits

    def is_bad(bits):
        return ~((bits & first).any(axis=1) & (bits & second).any(axis=1))

    bits = redraw(rng, rng.randint(0, 2, (rows, length), np.int8), is_bad)
    return np.where(place == digits, np.int8(2), bits)


def draw_positive(rng: RandomState, length: int, rows: int) -> np.ndarray:
    """A positive binary number, highest bit first."""
    return redraw(rng, rng.randint(0, 2, (rows, length), np.int8), lambda bits: ~bits.any(axis=1))


class Symbols(NamedTuple):
    """Tokens of an alphabet with brackets; the digits are 0 to 4."""

    operators: tuple[int, ...]  # + - and perhaps x
    left: int
    right: int


BRACKETS = Symbols((5, 6, 7), 8, 9)
EQUATION = Symbols((5, 6), 7, 8)
UNKNOWN = 9  # in equations
EQUALS = 10


def draw_expressions(rng: RandomState, length: int, rows: int, symbols: Symbols) -> np.ndarray:
    """d, -d, (d), (-d) at lengths 1 to 4; else (left op right), the length of left uniform from 1 to length - 4.

    Spans still to be filled, of all rows, are split together.
    """
    minus = symbols.operators[1]
    drawn = rng.randint(0, 5, (rows, length), np.int8)
    row = np.arange(rows)
    start = np.zeros(rows, int)
    size = np.full(rows, length)
    while len(row):
        bracketed = size > 2
        drawn[row[bracketed], start[bracketed]] = symbols.left
        drawn[row[bracketed], (start + size - 1)[bracketed]] = symbols.right
        negative = (size == 2) | (size == 4)
        drawn[row[negative], (start + size // 2 - 1)[negative]] = minus
        row, start, size = (part[size > 4] for part in (row, start, size))
        left = (rng.random_sample(len(row)) * (size - 4)).astype(int) + 1
        middle = start + 1 + left
        drawn[row, middle] = np.array(symbols.operators, np.int8)[rng.randint(0, len(symbols.operators), len(row))]
        row = np.tile(row, 2)
        start = np.concatenate([start + 1, middle + 1])
        size = np.concatenate([left, size - 3 - left])
    return drawn


def draw_equations(rng: RandomState, length: int, rows: int) -> np.ndarray:
    """An expression without x in which one digit is unknown, =, and its value; a random place is moved right to the
    next digit, cyclically, to choose it. Below length 3: zeros."""
    if length < 3:
        return np.zeros((rows, length), np.int8)
    expression = draw_expressions(rng, length - 2, rows, EQUATION)
    value = evaluate(expression, EQUATION)
    place = rng.randint(0, length - 2, (rows, 1))
    turned = np.take_along_axis(expression, (place + np.arange(length - 2)) % (length - 2), axis=1)
    place = (place[:, 0] + (turned < 5).argmax(axis=1)) % (length - 2)
    expression[np.arange(rows), place] = UNKNOWN
    return np.concatenate([expression, np.full((rows, 1), EQUALS, np.int8), value], axis=1)


# ---------------------------------------------------------------------- answers
def evaluate(expression: np.ndarray, symbols: Symbols) -> np.ndarray:
    """Values mod 5, int8 [rows, 1]; x binds tighter than + and -, and a minus before a digit belongs to it."""
    rows, length = expression.shape
    each = np.arange(rows)
    plus, minus, times = (*symbols.operators, -1)[:3]
    # By depth of brackets: the sum of the finished terms, the running term, the operator before the next number.
    total, term = np.zeros((2, rows, length // 2 + 2), int)
    pending = np.full(term.shape, plus)
    depth = np.zeros(rows, int)
    sign = np.ones(rows, int)
    after_number = np.zeros(rows, bool)
    for token in expression.T:
        is_left = token == symbols.left
        is_right = token == symbols.right
        is_digit = token < 5
        number = np.where(is_right, total[each, depth] + term[each, depth], sign * token)
        depth += is_left.astype(int) - is_right
        total[each[is_left], depth[is_left]] = term[each[is_left], depth[is_left]] = 0
        pending[each[is_left], depth[is_left]] = plus
        ends = is_digit | is_right  # a number ends here
        row = each[ends]
        at = depth[ends]
        operator = pending[row, at]
        old = term[row, at]
        number = number[ends]
        is_product = operator == times
        total[row, at] = (total[row, at] + np.where(is_product, 0, old)) % 5
        term[row, at] = np.where(is_product, old * number, np.where(operator == minus, -number, number)) % 5
        is_operator = ~(ends | is_left)
        binary = is_operator & after_number
        pending[each[binary], depth[binary]] = token[binary]
        sign = np.where(is_operator & ~binary, -1, 1)
        after_number = ends
    return ((total[:, :1] + term[:, :1]) % 5).astype(np.int8)


def solve_equations(rows: np.ndarray) -> np.ndarray:
    """The unknown digit, int8 [rows, 1]: without products the value is linear in it, with slope 1 or -1."""
    if rows.shape[1] < 3:
        return np.zeros((len(rows), 1), np.int8)
    tried = np.concatenate([np.where(rows == UNKNOWN, np.int8(n), rows)[:, :-2] for n in (0, 1)])
    at_0, at_1 = np.split(evaluate(tried, EQUATION), 2)
    return ((rows[:, -1:] - at_0) * (at_1 - at_0)) % 5


def final_stacks(rows: np.ndarray) -> np.ndarray:
    """The stack after all actions, top first, then 2, then zeros. A bit pushes itself; an empty stack pops nothing."""
    count, length = rows.shape
    stack = np.zeros((count, length + 1), np.int8)
    height = np.zeros(count, int)
    each = np.arange(count)
    for token in rows.T:
        pops = token == 2
        stack[each[~pops], height[~pops]] = (token - 3 * (token > 2))[~pops]
        height = np.maximum(height + np.where(pops, -1, 1), 0)
    place = height[:, None] - 1 - np.arange(length + 1)
    shown = np.take_along_axis(stack, np.maximum(place, 0), axis=1)
    return np.where(place >= 0, shown, TERMINATOR * (place == -1)).astype(np.int8)


def hidden_bits(rows: np.ndarray) -> np.ndarray:
    """The bit that the 2 hides, which the other half shows."""
    half = rows.shape[1] // 2
    if not half:
        return rows.copy()
    place = (rows == 2).argmax(axis=1)
    return rows[np.arange(len(rows)), (place + half) % (2 * half)][:, None]


def to_integers(bits: np.ndarray) -> list[int]:
    """Bits [rows, n], lowest first -> integers."""
    return [int.from_bytes(row.tobytes(), "little") for row in np.packbits(bits, axis=1, bitorder="little")]


def to_bits(numbers: list[int], width: int) -> np.ndarray:
    """Integers -> bits int8 [rows, width], lowest first."""
    data = b"".join(number.to_bytes(-(-width // 8), "little") for number in numbers)
    packed = np.frombuffer(data, np.uint8).reshape(len(numbers), -1)
    return np.unpackbits(packed, axis=1, count=width, bitorder="little").astype(np.int8)


def terminated_bits(numbers: list[int], width: int) -> np.ndarray:
    """Bits of integers, lowest first, without high zeros, then 2, then zeros; 0 has one digit."""
    bits = to_bits(numbers, width)
    end = np.array([max(number.bit_length(), 1) for number in numbers])
    return np.where(np.arange(width) == end[:, None], np.int8(TERMINATOR), bits)


def two_numbers(rows: np.ndarray) -> list[tuple[int, int]]:
    """The numbers before and after each row's 2; where there is none, its number and 0."""
    separator = np.where((rows == 2).any(axis=1), (rows == 2).argmax(axis=1), rows.shape[1]).tolist()
    numbers = to_integers(rows == 1)
    return [(n & ((1 << at) - 1), n >> (at + 1)) for n, at in zip(numbers, separator, strict=True)]


def products(rows: np.ndarray) -> np.ndarray:
    """Of the two numbers; at length 1 the 0 has no room before the terminator."""
    if rows.shape[1] == 1:
        return np.full(rows.shape, TERMINATOR, np.int8)
    return terminated_bits([a * b for a, b in two_numbers(rows)], rows.shape[1])


def roots(rows: np.ndarray) -> np.ndarray:
    """Integer square roots, highest bit first."""
    numbers = map(math.isqrt, to_integers(rows[:, ::-1]))
    return to_bits(list(numbers), -(-rows.shape[1] // 2))[:, ::-1]


def as_classes(values: np.ndarray) -> np.ndarray:
    """[rows] -> int8 [rows, 1]."""
    return values.astype(np.int8)[:, None]


# ---------------------------------------------------------------------- which rows there are, a character a token
def is_expression(text: str, operators: str) -> bool:
    """Whether the text is d, -d or an expression in brackets; ( and ) are brackets, - the minus, x an unknown digit."""
    operand = "(?:-?[0-4x]|E)"
    shorter = ""
    while (shorter := re.sub(rf"\((?:-?[0-4x]|{operand}[{operators}]{operand})\)", "E", text)) != text:
        text = shorter
    return re.fullmatch(operand, text) is not None


def is_bracketed(text: str) -> bool:
    return is_expression(text.translate(str.maketrans("56789", "+-*()")), r"+\-*")


def is_equation(text: str) -> bool:
    if len(text) < 3:
        return set(text) == {"0"}
    text = text.translate(str.maketrans("56789a", "+-()x="))
    return text.count("x") == 1 and re.fullmatch("=[0-4]", text[-2:]) and is_expression(text[:-2], r"+\-")


def is_missing_duplicate(text: str) -> bool:
    word = text[: len(text) // 2 * 2]
    pairs = list(zip(word[: len(word) // 2], word[len(word) // 2 :], strict=True))
    unequal = [set(pair) for pair in pairs if pair[0] != pair[1]]
    one_hidden = word.count("2") == 1 and len(unequal) == 1 and "3" not in word and text[len(word) :] in ("", "3")
    return one_hidden or text == "1"


# ---------------------------------------------------------------------- lengths of answers
def single(length: int) -> int:
    return 1


def as_long(length: int) -> int:
    return length


def one_longer(length: int) -> int:
    return length + 1


ANY = re.compile(".+").fullmatch
NUMBERS = re.compile("0|00|10|01|(?=0*1)[01]+2(?=0*1)[01]+").fullmatch

LANGUAGES = {
    language.name: language
    for language in (
        Language(
            "even_pairs", 2, tokens_below(2), lambda rows: as_classes(rows[:, 0] ^ rows[:, -1]), ANY, "R", 2, single
        ),
        Language(
            "modular_arithmetic", 9, draw_operations, lambda rows: evaluate(rows, BRACKETS),
            re.compile("[0-4]([567][0-4])*").fullmatch, "R", 5, single,
        ),
        Language("parity_check", 2, tokens_below(2), lambda rows: as_classes(rows.sum(1) % 2), ANY, "R", 2, single),
        Language(
            "cycle_navigation", 3, tokens_below(3), lambda rows: as_classes((rows - 1).sum(1) % 5), ANY, "R", 5, single
        ),
        Language(
            "stack_manipulation", 5, draw_stack, final_stacks, re.compile("[01]|[01]+[234]+").fullmatch,
            "DCF", 3, one_longer, terminated=True,
        ),
        Language("reverse_string", 2, tokens_below(2), lambda rows: rows[:, ::-1], ANY, "DCF", 2, as_long),
        Language(
            "modular_arithmetic_brackets", 11, lambda *args: draw_expressions(*args, BRACKETS),
            lambda rows: evaluate(rows, BRACKETS), is_bracketed, "DCF", 5, single,
        ),
        Language("solve_equation", 11, draw_equations, solve_equations, is_equation, "DCF", 5, single),
        Language("duplicate_string", 2, tokens_below(2), lambda rows: np.tile(rows, 2), ANY, "CS", 2, lambda n: 2 * n),
        Language("missing_duplicate", 4, draw_missing_duplicate, hidden_bits, is_missing_duplicate, "CS", 2, single),
        Language(
            "odds_first", 2, tokens_below(2), lambda rows: np.concatenate([rows[:, 1::2], rows[:, ::2]], axis=1), ANY,
            "CS", 2, as_long,
        ),
        Language(
            "binary_addition", 3, draw_numbers,
            lambda rows: terminated_bits([a + b for a, b in two_numbers(rows)], rows.shape[1] + 1), NUMBERS,
            "CS", 3, one_longer, terminated=True,
        ),
        Language("binary_multiplication", 3, draw_numbers, products, NUMBERS, "CS", 3, as_long, terminated=True),
        Language("compute_sqrt", 2, draw_positive, roots, re.compile(".*1.*").fullmatch, "CS", 2, lambda n: -(-n // 2)),
        Language("bucket_sort", 5, tokens_below(5), lambda rows: np.sort(rows, axis=1), ANY, "CS", 5, as_long),
    )
}  # fmt: skip


def draw(name: str, rng: RandomState, length: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows int8 [rows, length] (modular_arithmetic: of the odd length up to it) and their answers int8 [rows, L]."""
    drawn = LANGUAGES[name].draw(rng, length, rows)
    return drawn, LANGUAGES[name].answer(drawn)


def describe(language: Language) -> str:
    widths = [f"tokens {language.vocabulary}", f"classes {language.classes}"]
    widths.append("answers at T=40 " + str(language.answer_length(40)))
    return "  ".join([f"{LEVELS[language.level]:26}", *(f"{w:18}" for w in widths), f"chance {language.chance:g}"])


def main() -> None:
    run_commands("data.languages", "Fifteen formal languages.", LANGUAGES, describe)


if __name__ == "__main__":
    run_script(main)
