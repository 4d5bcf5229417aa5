"""What `benchmark.py tune` makes of measurements, and that what it writes can be read."""

from __future__ import annotations

from scripts.tune import choose, crossing, source


def row(grid, batch=3, structure="rank_one", dim=64, **seconds):
    forms = {name: {"median_seconds": value} for name, value in seconds.items()}
    return {"grid": grid, "batch": batch, "structure": structure, "dim": dim, "forms": forms}


def test_the_crossing_lies_between_the_last_slower_and_the_next_grid():
    rows = [row(10, source_scan=1, batch_minor=2, chunkwise=4), row(20, source_scan=16, batch_minor=9, chunkwise=16)]
    assert crossing(rows) is None
    # From 9/16 at 400 nodes to 16/9 at 1,600: halfway in the logarithms.
    rows.append(row(40, source_scan=256, batch_minor=112, chunkwise=63))
    assert crossing(rows) == 800
    assert crossing(rows[2:]) == 1600
    rows.append(row(80, chunkwise=252))  # the others were given up
    assert crossing(rows) == 800


def test_the_form_with_the_least_mean_loss_is_chosen():
    rows = [row(12, source_scan=3, batch_minor=1, chunkwise=3), row(24, source_scan=4, chunkwise=3)]
    rows += [row(12, batch=1, source_scan=1, batch_minor=3)]
    chosen = choose(rows)
    assert chosen["forms"] == {"rank_one": "source_scan"}
    assert 144 < chosen["chunkwise_from"]["rank_one"][64] < 576


def test_the_table_is_written_as_a_module():
    table = {"cpu": choose([row(12, source_scan=1, chunkwise=2)]) | {"measured": "here"}}
    found: dict = {}
    exec(source(table), found)
    assert found["TABLE"] == table and "tune" in found["__doc__"]
