import json
from multiprocessing import get_context

import pytest

from plstm.errors import UserError
from plstm.files import write_file
from plstm.studies.records import CurvePoint, commits_of, find_record, read_curve, read_records, write_record

from .conftest import edit_line, example_curve, example_record


def test_round_trip(tmp_path):
    records = [example_record(seed=seed) for seed in (43, 44)] + [example_record("arrow/vit")]
    for record in records:
        write_record(record, example_curve(0.9), tmp_path)
    assert read_records(tmp_path) == sorted(records, key=lambda record: record.id)
    assert read_curve(records[0], tmp_path) == [CurvePoint(*row) for row in example_curve(0.9)]
    files = {path.name: len(path.read_text().splitlines()) for path in tmp_path.rglob("*.jsonl")}
    assert files == {"arrow-plstm.jsonl": 2, "arrow-vit.jsonl": 1}
    assert [find_record(record.id, tmp_path) for record in records] == records
    assert find_record("0" * 12, tmp_path) is None is find_record(records[0].id, tmp_path / "none")


def test_of_two_records_of_a_run_by_other_names_the_first_to_finish_counts(tmp_path):
    first = example_record()
    write_record(first.model_copy(update={"experiment": "mine", "finished": "2025-06-02T11:00:00+00:00"}), [], tmp_path)
    write_record(first, [], tmp_path)
    assert read_records(tmp_path) == [first]


def test_a_rerun_takes_the_place_of_its_line(tmp_path):
    for wall in (1.0, 2.0):
        for seed in (43, 44):
            record = example_record(seed=seed, wall_seconds=wall)
            path = write_record(record, [(1, 0.1, "val", "loss", 1 / 3)], tmp_path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["record"]["seed"], line["record"]["wall_seconds"]) for line in lines] == [(43, 2), (44, 2)]
    assert lines[0]["curve"] == {"step": [1], "val.loss": [0.333333]}
    points = [(1, 0.1, "val", "top.5", 0.5), (2, 0.2, "train", "loss", 1e-9)]
    write_record(example_record(seed=43), points, tmp_path)
    assert [point[2:] for point in read_curve(example_record(seed=43), tmp_path)] == [point[2:] for point in points]


def test_a_file_that_lost_its_last_newline_takes_another_run(tmp_path):
    path = write_record(example_record(seed=43), [], tmp_path)
    path.write_text(path.read_text().rstrip())
    write_record(example_record(seed=44), [], tmp_path)
    assert {record.seed for record in read_records(tmp_path)} == {43, 44}


def test_processes_that_write_at_the_same_time_take_turns(tmp_path):
    (tmp_path / "runs").mkdir()
    left = tmp_path / "runs/.arrow-plstm.jsonl.123.tmp"
    left.write_text("of a killed process")
    arguments = [(example_record(seed=seed), example_curve(0.9), tmp_path) for seed in range(8)]
    processes = [get_context("fork").Process(target=write_record, args=each) for each in arguments]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert sorted(record.seed for record in read_records(tmp_path)) == list(range(8)) and not left.exists()


def test_a_run_outside_git_without_a_best_step_and_one_resumed(tmp_path):
    record = example_record(commit=None, dirty=None, metrics={**example_record().metrics, "best": None})
    made = {key: getattr(record, key) for key in ("commit", "dirty", "versions", "hardware")}
    own = {"xla_flags": "--x", "jax_settings": {"x": 1}, "converted": "by a script"}
    resumed = example_record(seed=44, earlier=[{"until": 5, **made}], **own)
    for run in (record, resumed):
        write_record(run, [], tmp_path)
    assert read_records(tmp_path) == sorted([record, resumed], key=lambda run: run.id)
    assert commits_of([resumed]) == ["0123456", "unknown*"] and commits_of([record]) == ["unknown*"]
    assert read_records(tmp_path / "absent") == []


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda f: f.update(acuracy=1), "acuracy: Extra inputs are not permitted"),
        (lambda f: f.update(seed="43"), "seed: Input should be a valid integer"),
        (lambda f: f.update(format=2), "format: Input should be 3"),
        (lambda f: f.update(wall_seconds=float("nan")), "wall_seconds: Input should be a finite number"),
        (lambda f: f["overrides"].append(43), r"overrides\[3\]: Input should be a valid string"),
        (lambda f: f["hardware"].update(host="gpu7"), "hardware.host: Extra inputs"),
        (lambda f: f.update(earlier=[{"until": 5}]), r"earlier\[0\].commit: Field required"),
        (lambda f: f["metrics"]["last"]["val"].update(accuracy="high"), "metrics.last.val.accuracy.int: Input"),
        (lambda f: f["metrics"]["best"].pop("step"), "metrics.best.step: Field required"),
        (lambda f: f.update(finished="yesterday"), "finished: String should match pattern"),
        (lambda f: f.update(id="arrow"), "id: String should match pattern"),
    ],
)
def test_a_corrupted_record_is_named_with_its_field(tmp_path, edit, words):
    for seed in (43, 44):
        path = write_record(example_record(seed=seed), [], tmp_path)
    edit_line(path, edit, number=1)
    with pytest.raises(UserError, match=f"^{path}, line 2: field record.{words}.*; restore the line or remove it$"):
        read_records(tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('{"record":', '{"record"', "Invalid JSON"),
        ('"curve":', '"kurve":', "field curve: Field required"),
        ('"val.accuracy":[', '"val.accuracy":["x",', "field curve.val.accuracy"),
        ('"experiment":"arrow/plstm"', '"experiment":"vit"', "is a run of experiment vit; move"),
    ],
)
def test_a_damaged_line_is_named(tmp_path, old, new, words):
    path = write_record(example_record(), example_curve(0.9), tmp_path)
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(UserError, match=f"{path}, line 1: .*{words}"):
        read_records(tmp_path)


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "table.md"
    write_file(path, b"old")

    def full(*_):
        raise OSError(28, "disk full")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match=f"disk full: '{path}'"):
        write_file(path, b"new")
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("table.md", b"old")]
