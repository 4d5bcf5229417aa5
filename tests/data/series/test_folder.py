"""A folder of one's own series."""

import numpy as np
import pytest

from data.series.folder import folder_digest, load_test, load_train
from plstm.errors import UserError
from plstm.runs.compose import compose_experiment, from_file
from plstm.runs.identity import portable_config, run_id
from plstm.tasks import TASKS


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "test").mkdir()
    rng = np.random.default_rng(0)
    np.save(tmp_path / "train.npy", 100 + rng.standard_normal((5, 640)).cumsum(1))
    rows = [f"{n},{n % 12 if n != 7 else ''},{n if n < 30 else ''}" for n in range(40)]
    (tmp_path / "test/sales.M.csv").write_text("\n".join(["a,b,c", *rows]))
    (tmp_path / "test/load.north.H.csv").write_text("\n".join(["load", *map(str, range(200))]))
    return tmp_path


def test_a_run_trains_and_tests_on_the_folder(folder):
    config = compose_experiment("series/forecast", "data.name=folder", f"data.path={folder}", "model.dim=16")
    task = TASKS["series"](config)
    assert [(each.name, each.season, len(each.series)) for each in task.sets] == [
        ("load.north.H", 24, 1),
        ("sales.M", 12, 3),
    ]
    sales = task.sets[1].series
    assert np.isnan(sales[1][7]) and [len(values) for values in sales] == [40, 40, 30]
    assert task.draw_batch(0)["values"].shape == (32, 576) and len(task.split("test")) > 0
    np.testing.assert_allclose(task.bank.mean(1), 0, atol=1e-6)
    assert task.describe_data().startswith("5 series (")
    config.data.bank_points = 700
    with pytest.raises(UserError, match="^data.bank_points=700: the series .* have 640 points; set it to that"):
        _ = TASKS["series"](config).bank
    (folder / "test/gap.W.csv").write_text("a\n1\n\n" + "2\n3\n" * 9)
    assert np.isnan(load_test(str(folder))[0].series[0][1])


def test_other_files_are_another_run(folder):
    words = ("series/forecast", "data.name=folder", f"data.path={folder}")
    before = compose_experiment(*words)
    np.save(folder / "train.npy", np.random.default_rng(1).standard_normal((5, 640)))
    assert run_id(compose_experiment(*words)) != run_id(before) != run_id(compose_experiment("series/forecast"))
    assert run_id(compose_experiment(*words, "data.eval_seed=0")) != run_id(before)  # the bank's, which is not drawn
    for key in ("bank", "bank_seed"):
        with pytest.raises(UserError, match=f"data.{key}=3: only data.name=packages or toy has it"):
            compose_experiment(*words, f"data.{key}=3")
    again = from_file(portable_config(before))  # as from a record, which says nothing of this machine's folders
    assert run_id(again) == run_id(before)
    with pytest.raises(UserError, match="data.path: name the folder of series"):
        _ = TASKS["series"](again).sets
    with pytest.raises(UserError, match=r"data.digest=\w+: data.path=.* has \w+; take the data"):
        _ = TASKS["series"](before).bank


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("train.npy", b"no array", "train.npy cannot be read"),
        ("test/sales.M.csv", b"", "sales.M.csv: not a table of numbers"),
        ("test/sales.M.csv", b"a\nx\n", "sales.M.csv: not a table of numbers"),
        ("test/sales.M.csv", b"a\n1,5\n", "sales.M.csv: not a table of numbers"),
        ("test/sales.M.csv", b"a,b\n" + b"1,2,\n" * 40, "sales.M.csv: not a table of numbers"),
        ("test/sales.M.csv", b"a\n1\n2\n", "must have more than 12 values, the horizon of M"),
        ("test/sales.M.csv", b"a,b\n" + b"1,\n" * 40, "must have more than 12 values"),
        ("test/sales.M.csv", b"a\n" + b"1\n" * 40, "no forecast of its last 12 values can be"),
        ("test/sales.M.csv", b"a\n" + b"".join(b"%d\n" % min(n, 16) for n in range(40)), "those of a season before"),
        ("test/sales.M.csv", b"a\n" + b"".join(b"%d\n" % (n % 7 * (n < 28)) for n in range(40)), "values are 0 there"),
        ("test/sales.M.csv", b"a\ninf\n" + b"1\n" * 40, "all finite"),
        ("test/sales.csv", b"a\n1\n", "name it NAME.FREQUENCY.csv, with a frequency of Y, Q, M"),
    ],
)
def test_what_cannot_be_used_is_named(folder, name, content, words):
    (folder / name).write_bytes(content)
    with pytest.raises(UserError, match=words):
        (load_train if name == "train.npy" else load_test)(str(folder))


def test_missing_values_and_files_are_named(folder):
    series = np.ones((2, 640))
    series[1, 3] = np.nan
    np.save(folder / "train.npy", series)
    with pytest.raises(
        UserError, match=r"train.npy: must have finite numbers \[series, points\], not float64 \[2, 640\]"
    ):
        load_train(str(folder))
    (folder / "train.npy").unlink()
    for read in (load_train, folder_digest):
        with pytest.raises(UserError, match="train.npy cannot be read"):
            read(str(folder))
    with pytest.raises(UserError, match="data.path: name the folder of series"):
        compose_experiment("series/forecast", "data.name=folder")
    with pytest.raises(UserError, match="has no test/NAME.FREQUENCY.csv"):
        load_test(str(folder / "test"))
