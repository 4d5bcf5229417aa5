"""Limits at the fields of a config: what is refused, and in which words."""

from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
import pytest
from annotated_types import Ge, Interval, Le, MinLen, MultipleOf

from plstm.errors import UserError
from plstm.limits import Matches, OneOf, OnlyWith, Positive, Rate, Share, Size, check_limits

Layer = Annotated[str, OneOf("lstm", "plstm")]


@dataclass
class Inner:
    rate: Rate = 0.0


@dataclass
class Example:
    dim: Size = 8
    least: Annotated[int, Ge(3)] = 3
    most: Annotated[int, Le(5)] = 5
    scale: Positive = 1.0
    share: Share | None = None
    name: Annotated[str, Matches("[a-z]+", "of letters")] = "a"
    grid: Annotated[bool | str, OneOf(True, "released")] = True
    layers: Annotated[list[Layer], MinLen(1)] = field(default_factory=lambda: ["lstm"])
    stages: list[list[Annotated[int, Interval(ge=1, le=9)]]] = field(default_factory=list)
    track: Annotated[int, OnlyWith("layers", ("plstm", "mlstm"))] = 2
    free: str = ""
    inner: Inner = field(default_factory=Inner)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"dim": 0}, "x.dim=0: must be in [1, 65536]"),
        ({"least": 2}, "x.least=2: must be at least 3"),
        ({"most": 6}, "x.most=6: must be at most 5"),
        *(({"scale": value}, f"x.scale={value}: must be positive") for value in (0.0, -1.0)),
        *(({"scale": float(value)}, f"x.scale={value}: must be a number that float32") for value in ("nan", "1e+39")),
        ({"share": 1.1}, "x.share=1.1: must be in [0, 1]"),
        ({"name": "a1"}, "x.name=a1: must be of letters"),
        ({"name": "a\n"}, r"x.name='a\n': must be printable text of one line"),
        ({"free": "a\x1b"}, r"x.free='a\x1b': must be printable text of one line"),
        ({"track": 2**31}, "x.track=2147483648: must be under 2^31"),
        ({"grid": False}, "x.grid=False: choose one of true, released"),
        ({"layers": []}, "x.layers=[]: must not be empty"),
        ({"layers": ["lstm", "gru"]}, "x.layers=['lstm', 'gru']: choose one of lstm, plstm"),
        ({"stages": [[1], [2, 0]]}, "x.stages=[[1], [2, 0]]: must be in [1, 9]"),
        ({"dim": "8"}, "x.dim=8: must be an int, not str"),
        ({"dim": np.int64(8)}, "x.dim=8: must be an int, not int64"),
        ({"dim": True}, "x.dim=True: must be an int, not bool"),
        ({"scale": "1"}, "x.scale=1: must be a number, not str"),
        ({"dim": None}, "x.dim=None: must be an int, not NoneType"),
        ({"free": 1}, "x.free=1: must be a str, not int"),
        ({"layers": "lstm"}, "x.layers=lstm: must be a list, not str"),
        ({"stages": [1]}, "x.stages=[1]: must be a list, not int"),
        ({"track": 3}, "x.track=3: only x.layers=plstm or mlstm has it"),
        ({"inner": Inner(rate=1.0)}, "x.inner.rate=1.0: must be in [0, 1)"),
    ],
)
def test_what_is_out_of_limits_is_named(values, problem):
    with pytest.raises(UserError) as caught:
        check_limits(Example(**values), "x.")
    assert str(caught.value).startswith(problem)


def test_a_limit_that_nobody_checks_is_a_mistake():
    @dataclass
    class Odd:
        even: Annotated[int, MultipleOf(2)] = 2

    with pytest.raises(TypeError, match="MultipleOf"):
        check_limits(Odd())


def test_what_is_within_limits_passes():
    check_limits(Example())
    check_limits(Example(dim=2**16, share=1.0, inner=Inner(rate=0.0), grid="released", stages=[[9, 1], []]))
    check_limits(Example(layers=["lstm", "plstm"], track=3))
    check_limits(Example(scale=2, share=np.float64(1), layers=("lstm",)))
