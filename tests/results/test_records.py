import dataclasses
import json

import pytest

from plstm.errors import UserError
from plstm.results.records import CurvePoint, curve_path, read_curve, read_records, write_file, write_record

from .conftest import example_curve, example_record


def corrupt(path, edit):
    fields = json.loads(path.read_text())
    edit(fields)
    path.write_text(json.dumps(fields))


def test_round_trip(tmp_path):
    records = [example_record(seed=seed) for seed in (43, 44)]
    for record in records:
        write_record(record, example_curve(0.9), tmp_path)
    assert read_records(tmp_path) == sorted(records, key=lambda record: record.id)
    assert read_curve(records[0], tmp_path) == [CurvePoint(*row) for row in example_curve(0.9)]
    names = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert names == {f"{record.id}.{kind}" for record in records for kind in ("json", "csv")}


def test_a_run_outside_every_table_outside_git(tmp_path):
    metrics = {**example_record().metrics, "best": None}
    record = example_record(table=None, row=None, commit=None, dirty=None, metrics=metrics)
    write_record(record, [], tmp_path)
    assert read_records(tmp_path) == [record]


@pytest.mark.parametrize("younger", [{"xla_flags"}, {"xla_flags", "earlier"}])
def test_records_of_older_versions_are_read(tmp_path, younger):
    made = {key: getattr(example_record(), key) for key in ("commit", "dirty", "versions", "hardware")}
    record = example_record(earlier=[] if "earlier" in younger else [{"until": 5, **made}])
    path = write_record(record, [], tmp_path)
    corrupt(path, lambda fields: [fields.pop(key) for key in younger])
    assert read_records(tmp_path) == [record]


def test_no_folder_no_records(tmp_path):
    assert read_records(tmp_path / "absent") == []


@pytest.mark.parametrize(
    ("edit", "field"),
    [
        (lambda f: f.update(acuracy=1), "field acuracy is unknown"),
        (lambda f: f.pop("seed"), "field seed is missing"),
        (lambda f: f.update(seed="43"), "field seed must be of type int"),
        (lambda f: f.update(seed=True), "field seed must be of type int"),
        (lambda f: f.update(wall_seconds="an hour"), "field wall_seconds must be a finite number"),
        (lambda f: f.update(wall_seconds=float("nan")), "field wall_seconds must be a finite number"),
        (lambda f: f.update(row=7), "field row must be of type str"),
        (lambda f: f.update(overrides="seed=43"), "field overrides must be a list"),
        (lambda f: f["overrides"].append(43), "field overrides.3 must be of type str"),
        (lambda f: f["hardware"].pop("cpu_cores"), "field hardware.cpu_cores is missing"),
        (lambda f: f.update(earlier=[{"until": 5}]), "field earlier.0.commit is missing"),
        (lambda f: f["hardware"].update(host="gpu7"), "field hardware.host is unknown"),
        (lambda f: f["metrics"].update(last=[]), "field metrics.last must be a dict"),
        (lambda f: f["metrics"]["last"]["val"].pop("count"), "field metrics.last.val.count is missing"),
        (lambda f: f["metrics"]["last"]["val"].update(accuracy=97.2), "field metrics.last.val.accuracy is 97.2"),
        (lambda f: f["metrics"]["best"].pop("step"), "field metrics.best.step must be of type int"),
        (lambda f: f["metrics"]["best"].update(val=0.9), "field metrics.best.val must be a dict"),
        (lambda f: f.update(finished="yesterday"), "field finished is 'yesterday'"),
        (lambda f: f.update(id="0123456789ab"), "field id is '0123456789ab'"),
    ],
)
def test_a_corrupted_record_is_named_with_its_field(tmp_path, edit, field):
    path = write_record(example_record(), [], tmp_path)
    corrupt(path, edit)
    with pytest.raises(UserError) as error:
        read_records(tmp_path)
    assert str(path) in str(error.value)
    assert field in str(error.value)
    assert "\n" not in str(error.value)


def test_a_truncated_record_is_named(tmp_path):
    path = write_record(example_record(), [], tmp_path)
    path.write_text(path.read_text()[:100])
    with pytest.raises(UserError, match=f"{path}: not a JSON file"):
        read_records(tmp_path)


def test_a_bad_record_is_not_written(tmp_path):
    with pytest.raises(UserError, match="field steps must be of type int"):
        write_record(dataclasses.replace(example_record(), steps=10.5), [], tmp_path)
    with pytest.raises(UserError, match="field id"):
        write_record(dataclasses.replace(example_record(), id="arrow"), [], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_curve_errors_name_the_file(tmp_path):
    record = example_record()
    write_record(record, example_curve(0.9), tmp_path)
    path = curve_path(record, tmp_path)
    text = path.read_text()
    path.write_text(text + "2000,2.56,val,accuracy,high\n")
    with pytest.raises(UserError, match=f"{path}, line 82"):
        read_curve(record, tmp_path)
    path.write_text(text + "2000,2.56,val\n")
    with pytest.raises(UserError, match=f"{path}, line 82"):
        read_curve(record, tmp_path)
    path.write_text(text.replace("epoch", "time"))
    with pytest.raises(UserError, match="the first line must be step,epoch,split,metric,value"):
        read_curve(record, tmp_path)
    path.unlink()
    with pytest.raises(UserError, match=f"{path}: this curve is missing"):
        read_curve(record, tmp_path)


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "table.md"
    write_file(path, b"old")

    def full(*_):
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="disk full"):
        write_file(path, b"new")
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("table.md", b"old")]


def test_values_by_dotted_key():
    record = example_record(lr=3e-4)
    assert record.config_value("optim.peak_lr") == 3e-4
    assert record.metric("test_ext") == 0.78
    with pytest.raises(UserError, match=rf"runs/{record.id}.json: field config has no key 'optim.peak.lr'"):
        record.config_value("optim.peak.lr")
    with pytest.raises(UserError, match="has no split 'test2'"):
        record.metric("test2")
