"""The fifteen formal languages: golden rows, which rows there are, a second implementation of each, the commands."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from numpy.random import RandomState

from data import languages
from data.commands import DIGITS
from data.languages import LANGUAGES, draw
from tests.commands import call_here, refused
from tests.data.batching import crc

# A character a token, 10 as a: rows and answers that the released samplers' code gives.
GOLDEN = {
    "even_pairs": "0 -> 0; 1 -> 0; 01 -> 1; 10 -> 1; 001110 -> 0; 0101001 -> 1",
    "parity_check": "0 -> 0; 1 -> 1; 11 -> 0; 1010100 -> 1; 01111 -> 0",
    "cycle_navigation": "0 -> 4; 1 -> 0; 2 -> 1; 00 -> 3; 20100 -> 3; 22202 -> 3",
    "modular_arithmetic": "3 -> 3; 463 -> 1; 15273 -> 2; 163 -> 3; 16161 -> 4; 071547362 -> 0",
    "stack_manipulation": "0 -> 02; 12 -> 200; 132 -> 1200; 0110422 -> 11020000; 110222 -> 2000000; 1033 -> 00012",
    "reverse_string": "1 -> 1; 10 -> 01; 011010 -> 010110; 110 -> 011",
    "modular_arithmetic_brackets": "2 -> 2; 63 -> 2; 849 -> 4; 8639 -> 2; 82539 -> 0; 883749686299 -> 4",
    "solve_equation": "0 -> 0; 00 -> 0; 9a3 -> 3; 69a2 -> 3; 798a4 -> 4; 72698a0 -> 2; 77618598a2 -> 3",
    "duplicate_string": "0 -> 00; 10 -> 1010; 101 -> 101101",
    "missing_duplicate": "1 -> 1; 20 -> 0; 12 -> 1; 023 -> 0; 213 -> 1; 01100210 -> 1; 1011213 -> 0",
    "odds_first": "1 -> 1; 10 -> 01; 110 -> 110; 00110101 -> 01110100; 10010 -> 01100",
    "binary_addition": "0 -> 02; 00 -> 020; 10 -> 120; 01 -> 012; 121 -> 0120; 11211 -> 011200;"
    "001201101 -> 0101120000; 10012000001 -> 100101200000",
    "binary_multiplication": "0 -> 2; 00 -> 02; 01 -> 02; 121 -> 120; 11211 -> 10012; 001201101 -> 000110120;"
    "10012000001 -> 00000100120",
    "compute_sqrt": "1 -> 1; 01 -> 1; 11 -> 1; 111 -> 10; 100101 -> 110; 000001 -> 001; 1111111 -> 1011",
    "bucket_sort": "3 -> 3; 40 -> 04; 10204112 -> 00111224; 1110001 -> 0001111",
}
# All rows of lengths 1, 2 and 3, space between; where it is a number, how many there are.
SUPPORT = {
    "even_pairs": (2, 4, 8),
    "modular_arithmetic": (5, 5, 75),
    "parity_check": (2, 4, 8),
    "cycle_navigation": (3, 9, 27),
    "stack_manipulation": ("0 1", "02 03 04 12 13 14", 12 + 18),
    "reverse_string": (2, 4, 8),
    "modular_arithmetic_brackets": ("0 1 2 3 4", "60 61 62 63 64", "809 819 829 839 849"),
    "solve_equation": ("0", "00", "9a0 9a1 9a2 9a3 9a4"),
    "duplicate_string": (2, 4, 8),
    "missing_duplicate": ("1", "02 12 20 21", "023 123 203 213"),
    "odds_first": (2, 4, 8),
    "binary_addition": ("0", "00 10 01", "121"),
    "binary_multiplication": ("0", "00 10 01", "121"),
    "compute_sqrt": ("1", "01 10 11", 7),
    "bucket_sort": (5, 25, 125),
}
# Of the bytes of rows of several lengths, whose seeds are the lengths.
NAMES_AND_CRCS = """
    even_pairs a74bae80 modular_arithmetic 8c75217d parity_check a74bae80 cycle_navigation 61f72359
    stack_manipulation 4c0f64b2 reverse_string a74bae80 modular_arithmetic_brackets a1175c62 solve_equation 1e76ffad
    duplicate_string a74bae80 missing_duplicate a4e346d1 odds_first a74bae80 binary_addition 5abd43f2
    binary_multiplication 5abd43f2 compute_sqrt 75d1c30c bucket_sort 5a8c15cb
"""
CRCS = dict(zip(NAMES_AND_CRCS.split()[::2], NAMES_AND_CRCS.split()[1::2], strict=True))


def as_text(row) -> str:
    return "".join(DIGITS[token] for token in row)


def evaluated(text: str, symbols: str) -> int:
    """By Python's own arithmetic."""
    return eval(text.translate(str.maketrans("56789"[: len(symbols)], symbols))) % 5


def stack_after(row: list[int]) -> list[int]:
    stack = [token for token in row if token < 2]
    for action in (token for token in row if token >= 2):
        if action == 2:
            stack = stack[:-1]
        else:
            stack.append(action - 3)
    return (stack[::-1] + [2] + [0] * len(row))[: len(row) + 1]


def combined(row: list[int], operation, width: int) -> list[int]:
    """The two numbers of a row, in digits; long addition or multiplication by Python."""
    parts = (as_text(row) + ("" if 2 in row else "20")).split("2")
    number = operation(*(int(part[::-1] or "0", 2) for part in parts))
    return ([int(digit) for digit in bin(number)[:1:-1]] + [2] + [0] * width)[:width]


def sqrt_of(row: list[int]) -> list[int]:
    number, width = int(as_text(row), 2), math.ceil(len(row) / 2)
    root = max(n for n in range(2**width) if n * n <= number)
    return [int(digit) for digit in f"{root:0{width}b}"]


def solution(row: list[int]) -> list[int]:
    left, equals, right = as_text(row).partition("a")
    good = [x for x in range(5) if equals and evaluated(left.replace("9", str(x)), "+-()") == int(right)]
    assert len(good) == bool(equals)
    return good or [0]


def shown_bit(row: list[int]) -> list[int]:
    half = len(row) // 2
    pairs = [{row[n], row[n + half]} for n in range(half)]
    return [next((min(pair) for pair in pairs if 2 in pair), 1)]


SECOND = {
    "even_pairs": lambda row: [sum(a != b for a, b in itertools.pairwise(row)) % 2],
    "modular_arithmetic": lambda row: [evaluated(as_text(row), "+-*")],
    "parity_check": lambda row: [row.count(1) % 2],
    "cycle_navigation": lambda row: [(row.count(2) - row.count(0)) % 5],
    "stack_manipulation": stack_after,
    "reverse_string": lambda row: list(reversed(row)),
    "modular_arithmetic_brackets": lambda row: [evaluated(as_text(row), "+-*()")],
    "solve_equation": solution,
    "duplicate_string": lambda row: row + row,
    "missing_duplicate": shown_bit,
    "odds_first": lambda row: [x for n, x in enumerate(row) if n % 2] + [x for n, x in enumerate(row) if n % 2 == 0],
    "binary_addition": lambda row: combined(row, int.__add__, len(row) + 1),
    "binary_multiplication": lambda row: combined(row, int.__mul__, len(row)) if len(row) > 1 else [2],
    "compute_sqrt": sqrt_of,
    "bucket_sort": lambda row: [x for x, count in sorted(Counter(row).items()) for _ in range(count)],
}


@pytest.mark.parametrize("name", LANGUAGES)
def test_golden_rows_have_their_answers(name):
    for pair in GOLDEN[name].replace(" ", "").split(";"):
        row, answer = pair.split("->")
        found = LANGUAGES[name].answer(np.array([[DIGITS.index(token) for token in row]], np.int8))
        assert as_text(found[0]) == answer, pair
        assert found.dtype == np.int8
        assert LANGUAGES[name].accepts(row), pair


@pytest.mark.parametrize("name", LANGUAGES)
def test_short_rows_are_all_those_of_the_task_and_no_others(name):
    for length, wanted in enumerate(SUPPORT[name], start=1):
        found = {as_text(row) for row in draw(name, RandomState(0), length, 2000)[0]}
        assert (len(found) if isinstance(wanted, int) else " ".join(sorted(found))) == (
            wanted if isinstance(wanted, int) else " ".join(sorted(wanted.split()))
        )
        own = [*map("".join, itertools.product(DIGITS[: LANGUAGES[name].vocabulary], repeat=length))]
        length = len(next(iter(found)))
        assert {text for text in own if len(text) == length and LANGUAGES[name].accepts(text)} <= found


@pytest.mark.parametrize("name", LANGUAGES)
def test_the_rows_of_a_seed_never_change(name):
    assert crc(draw(name, RandomState(length), length, 50)[0] for length in (1, 2, 7, 16)) == CRCS[name]


@pytest.mark.parametrize("name", LANGUAGES)
def test_answers_are_those_of_a_second_implementation(name):
    task = LANGUAGES[name]
    for length, count in ((1, 20), (2, 60), (3, 60), (9, 200), (16, 260), (23, 400)):
        rows, answers = draw(name, RandomState((5, length)), length, count)
        assert rows.shape == (count, length - (name == "modular_arithmetic" and length % 2 == 0))
        assert answers.shape == (count, task.answer_length(length))
        assert rows.min() >= 0 and rows.max() < task.vocabulary and answers.min() >= 0
        assert answers.max() < task.classes
        for row, answer in zip(rows.tolist(), answers.tolist(), strict=True):
            assert answer == SECOND[name](row), row
            assert task.accepts(as_text(row)), row


@pytest.mark.parametrize("name", LANGUAGES)
def test_long_rows_have_the_tokens_that_the_task_says(name):
    rows, answers = draw(name, RandomState(1), 40, 1000)
    assert (rows[:500] != rows[500:]).any(), "rows differ"
    repeated = draw(name, RandomState(1), 40, 1000)
    assert np.array_equal(rows, repeated[0]) and np.array_equal(answers, repeated[1])
    count = np.bincount(rows.ravel(), minlength=11) / rows.size
    bits, fives = [0.5, 0.5], [0.2] * 5
    wanted = {
        "cycle_navigation": [1 / 3] * 3,
        "bucket_sort": fives,
        "modular_arithmetic": [20 / 39 / 5] * 5 + [19 / 39 / 3] * 3,  # of 39 tokens 20 are digits
        "stack_manipulation": [0.25, 0.25] + [1 / 6] * 3,  # half of the row is actions
        "missing_duplicate": [0.4875, 0.4875, 0.025],
        "binary_addition": [0.4875, 0.4875, 0.025],
        "binary_multiplication": [0.4875, 0.4875, 0.025],
    }.get(name, bits)
    if name in ("modular_arithmetic_brackets", "solve_equation"):
        assert count[:5].min() > 0.8 * count[:5].max() and np.ptp(count[[8, 9] if "mod" in name else [7, 8]]) == 0
        operators = count[5:8] if "mod" in name else count[5:7]
        assert count[5] < operators[1] and operators.min() > 0.05  # a minus also stands before digits
    else:
        np.testing.assert_allclose(count[: len(wanted)], wanted, atol=0.012)


def test_the_length_of_the_left_side_is_uniform():
    rows = draw("modular_arithmetic_brackets", RandomState(2), 8, 4000)[0]
    depth = np.cumsum((rows == 8).astype(int) - (rows == 9), axis=1)
    operator = (depth == 1) & np.isin(rows, (5, 6, 7)) & (np.roll(rows, 1, axis=1) != 8)
    operator &= ~np.isin(np.roll(rows, 1, axis=1), (5, 6, 7))  # a minus of a number follows an operator or a bracket
    assert (operator.sum(axis=1) == 1).all()
    np.testing.assert_allclose(np.bincount(operator.argmax(axis=1), minlength=6)[2:6] / 4000, 0.25, atol=0.03)


def printed(*arguments: object) -> str:
    status, output, errors = call_here(languages.main, *arguments)
    assert (status, errors) == (0, "")
    return output


def test_the_commands_print_answers_samples_and_the_list():
    assert printed("answer", "solve_equation", *"726", 9, 8, 10, 0) == "2\n"
    sample = ["sample", "odds_first", "--length", 7, "--count", 3, "--seed"]
    lines = printed(*sample, 4).splitlines()
    assert len(lines) == 3 and lines != printed(*sample, 5).splitlines()
    row, answer = lines[0].split(" -> ")
    assert printed("answer", "odds_first", *row.split()) == answer + "\n"
    listed = printed("list").splitlines()
    assert [line.split()[0] for line in listed] == list(LANGUAGES)
    assert "chance 0.2" in listed[-1]


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ("answer parity 1", "task parity: choose one of even_pairs"),
        ("answer parity_check 1 2", "token 2: the tokens of parity_check are 0 to 1"),
        ("answer parity_check", "TOKEN"),
        ("answer modular_arithmetic 1 5", "no such row of length 2"),
        ("answer modular_arithmetic_brackets 8 1 5 6 8 1 9 9", "no such row"),
        ("answer missing_duplicate 0 1 2 0", "no such row"),
        ("answer binary_addition 0 2 1", "no such row"),
        ("sample parity_check --count 0", "--count 0"),
        ("sample parity_check --length 1.5", "--length"),
        ("sample parity_check --seed -1", "--seed -1"),
    ],
)
def test_bad_input_gets_one_line(arguments, part):
    assert part in refused(languages.main, *arguments.split())
