"""Files from elsewhere run nothing, take nothing from this machine, and write nothing outside their folder."""

import io
import json
import os
import pickle
import struct
import sys
import tarfile
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from omegaconf import OmegaConf
from PIL import Image

import data.graphs.tudataset as tudataset
import train
from data.arrow_pointing.builder import _read
from data.decoding import MOST_PIXELS, CorruptImage, decode
from data.imagenet.folders import TOY as TOY_PICTURES
from data.imagenet.folders import folder_source
from data.imagenet.source import load_source, prepare
from plstm.config import Config
from plstm.errors import UserError
from plstm.runs.cli import check_command, run_entry
from plstm.runs.compose import compose_experiment, from_file, register, schema, to_config
from plstm.runs.folders import load_config, load_overrides, lock_folder
from plstm.runs.identity import plain_config, run_name
from plstm.runs.local import local_settings
from plstm.runs.weights import config_of, from_checkpoint
from plstm.studies.definitions import load_table, read_baselines
from plstm.studies.records import read_records, record_problems
from tests.commands import ROOT
from tests.drawing import encoded

TOY = ROOT / "data/graphs/TOY"
SECRET = "hunter2-not-to-be-seen"


class Planted:
    """Its pickle makes a folder when it is read."""

    def __init__(self, sign: Path):
        self.sign = sign

    def __reduce__(self):
        return os.mkdir, (str(self.sign),)


@pytest.fixture
def sign(tmp_path, monkeypatch) -> Path:
    """A folder that must never come to be, and a secret in the environment."""
    monkeypatch.setenv("PLSTM_PLANTED", SECRET)
    path = tmp_path / "executed"
    yield path
    assert not path.exists()


def plain() -> dict:
    register()
    node = schema("arrow", "vision")
    node.data.train_seed, node.model.classes = 43, 2
    return plain_config(to_config(node))


def write_config(folder: Path, config: object) -> Path:
    """Writes text, or what a config becomes as YAML, to where a run has its config."""
    path = folder / ".hydra" / "config.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(config if isinstance(config, str) else OmegaConf.to_yaml(config))
    return path


def planted_yaml(sign: Path) -> list[str]:
    return [
        f"seed: !!python/object/apply:os.mkdir ['{sign}']\n",
        f"experiment: !!python/object/new:os.mkdir ['{sign}']\n",
        "experiment: !!python/name:os.system\n",
        "experiment: !!python/module:antigravity\n",
    ]


def test_yaml_tags_are_refused_wherever_yaml_is_read(sign, tmp_path):
    for text in planted_yaml(sign):
        write_config(tmp_path / "run", text)
        with pytest.raises(UserError, match="not the config of a run"):
            load_config(tmp_path / "run")
        table = tmp_path / "t.yaml"
        table.write_text(text)
        with pytest.raises(UserError):
            load_table(table)


BOMB = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9))


@pytest.mark.parametrize("text", [BOMB, "{a: " * 400 + "1" + "}" * 400, "x: " + "y" * 2_000_000, "a: \xff", "*a"])
def test_yaml_that_takes_long_to_read_or_is_none_is_refused(tmp_path, text):
    path = write_config(tmp_path / "run", "")
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(UserError, match="not the config of a run"):
        load_config(tmp_path / "run")
    path.rename(path.with_name("overrides.yaml"))
    assert load_overrides(tmp_path / "run") == []
    with pytest.raises(UserError, match=f"{path.parent}/overrides.yaml: cannot be read"):
        local_settings(path.with_name("overrides.yaml"))


@pytest.mark.parametrize("name", [".lock", "metrics.jsonl", "checkpoints/damaged", ".hydra", "wandb"])
@pytest.mark.parametrize("is_broken", [False, True])
def test_a_run_s_folder_with_a_link_that_leaves_it_is_refused(tmp_path, name, is_broken):
    victim = tmp_path / "victim"
    if not is_broken:
        write_config(victim, plain())
    before = sorted(tmp_path.rglob("*"))
    link = tmp_path / "runs" / "run" / name
    link.parent.mkdir(parents=True)
    link.symlink_to("../" * (3 + name.count("/")) + "victim")
    for read in (load_config, lambda folder: lock_folder(folder).__enter__()):
        with pytest.raises(UserError, match=f"{link}: a symbolic link that leads out of the run's folder; remove it"):
            read(tmp_path / "runs" / "run")
    assert sorted(path for path in tmp_path.rglob("*") if tmp_path / "runs" not in (path, *path.parents)) == before


def test_links_within_a_run_s_folder_and_to_it_are_followed(tmp_path):
    """W&B makes some, and links to its logs."""
    write_config(tmp_path / "run", plain())
    (tmp_path / "run" / "wandb" / "offline-run").mkdir(parents=True)
    (tmp_path / "run" / "wandb" / "latest-run").symlink_to("offline-run")
    (tmp_path / "run" / "wandb" / "offline-run" / "core.log").symlink_to("/somewhere/core.log")
    (tmp_path / "link").symlink_to("run")
    with lock_folder(tmp_path / "link"):
        assert load_config(tmp_path / "link").task == "arrow"


def test_places_of_this_machine_are_not_taken_from_a_file(tmp_path):
    for task, key in (("arrow", "root"), ("folder", "path")):
        config = (
            plain()
            if task == "arrow"
            else plain_config(compose_experiment("folder/plstm", f"data.path={TOY_PICTURES}"))
        )
        config["data"][key] = "/home/somebody"
        write_config(tmp_path, config)
        assert getattr(load_config(tmp_path).data, key) is None


@pytest.mark.parametrize("key", ["experiment", "variant", "data.name"])
@pytest.mark.parametrize("name", ["/../../victim", "../up", "a/../../b", "/root", "a\0b", "\x1b[31m", "x" * 300, ""])
def test_a_run_s_name_is_one_of_a_file(tmp_path, key, name):
    config = OmegaConf.create(plain_config(compose_experiment("graphs/gin", "data.fold=0")))
    OmegaConf.update(config, key, name)
    try:
        found = run_name(from_file(OmegaConf.to_container(config)))
    except UserError as refused:
        assert str(refused).isprintable()
    else:
        assert "/" not in found and found.isprintable() and len(found) < 200


@pytest.mark.parametrize("word", ["+hydra.callbacks.x._target_=os.mkdir", "hydra.launcher._target_=os.mkdir"])
def test_no_override_names_code(word):
    for words in ([word], ["-m", word], ["+x={y: {_target_: os.mkdir}}"]):
        with pytest.raises(UserError, match="_target_ names code that would run; leave it out"):
            check_command([*words, "experiment=arrow/vit"], Config)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--config-dir=.", "+planted@_global_=x", "--config-name=planted"], "could not determine a constructor"),
        (["--experimental-rerun=config.pickle"], "reads a pickle"),
    ],
)
def test_hydra_s_flags_read_no_tag_and_no_pickle(sign, tmp_path, monkeypatch, capsys, flags, words):
    (tmp_path / "planted.yaml").write_text(planted_yaml(sign)[0])
    (tmp_path / "config.pickle").write_bytes(pickle.dumps(Planted(sign)))
    monkeypatch.setattr(sys, "argv", ["train.py", *flags])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        run_entry(train.main, Config)
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("key", ["experiment", "paths.results", "data.root", "init_from", "loop.best_split"])
def test_no_resolver_of_a_run_s_config_is_filled_in(sign, tmp_path, key):
    node = OmegaConf.create(plain())
    OmegaConf.update(node, key, "${oc.env:PLSTM_PLANTED}")
    write_config(tmp_path, node)
    with pytest.raises(UserError, match="would be filled in from this machine") as refused:
        load_config(tmp_path)
    assert SECRET not in str(refused.value)


def safetensors(path: Path, metadata: dict[str, str]) -> Path:
    header = json.dumps({"__metadata__": metadata}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    return path


def test_metadata_of_weights_fill_in_and_run_nothing(sign, tmp_path):
    metadata = {"format": "plstm", "format_version": "4", "run": "0123456789ab", "step": "1", "class_names": "[]"}
    metadata |= {"preprocessing": "null", "sizes": "{}", "sha256": "0" * 64, "model": json.dumps(plain()["model"])}
    for value in ("${oc.env:PLSTM_PLANTED}", "${oc.env:PLSTM_PLANTED,x}", "${${oc.env:PLSTM_PLANTED}}", "a ${now:%Y}"):
        config = plain() | {"experiment": value}
        path = safetensors(tmp_path / "model.safetensors", metadata | {"training": json.dumps(config)})
        with pytest.raises(UserError, match="would be filled in from this machine") as refused:
            config_of(path)
        assert SECRET not in str(refused.value)
    for sizes in ('{"features": "x"}', '{"features": -1}', '{"features": 1e400}', "[1]", "{"):
        safetensors(path, metadata | {"training": "null", "sizes": sizes})
        with pytest.raises(UserError, match="metadata that do not fit"):
            from_checkpoint(path)
    pickles = [pickle.dumps(Planted(sign), protocol) for protocol in range(6)]
    for content in (*pickles, b"", struct.pack("<Q", 2**62) + b"{}"):  # the last has a header of a size that nobody has
        path.write_bytes(content)
        with pytest.raises(UserError, match="not a whole safetensors file"):
            from_checkpoint(path)


def test_records_and_baselines_are_json_and_nothing_else(sign, tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "baselines").mkdir()
    for content in (pickle.dumps(Planted(sign)), planted_yaml(sign)[0].encode()):
        (tmp_path / "runs" / "arrow-plstm.jsonl").write_bytes(content)
        with pytest.raises(UserError, match="arrow-plstm.jsonl, line 1"):
            read_records(tmp_path)
        (tmp_path / "baselines" / "arrow-96.json").write_bytes(content)
        with pytest.raises(UserError, match="arrow-96.json"):
            read_baselines(load_table(ROOT / "configs/study/arrow-demo.yaml"), tmp_path)


def test_a_resolver_in_a_record_stays_text(sign, tmp_path):
    (tmp_path / "runs").mkdir()
    line = json.loads((ROOT / "results/runs/arrow_48-plstm.jsonl").read_text().splitlines()[0])
    line["record"]["config"]["data"] = "${oc.env:PLSTM_PLANTED}"
    (tmp_path / "runs" / "arrow_48-plstm.jsonl").write_text(json.dumps(line))
    (found,) = read_records(tmp_path)
    assert SECRET not in f"{found} {record_problems(found, tmp_path)}" and "${oc.env" in str(found)


def test_a_packed_split_is_no_pickle(sign, tmp_path):
    path = tmp_path / "val.npz"
    np.savez(path, bits=np.array([Planted(sign)], object), labels=np.zeros(1, np.uint8))
    assert _read(path, 1, 48) is None  # is made again
    np.save(tmp_path / "val.npy", np.array([Planted(sign)], object), allow_pickle=True)
    assert _read(tmp_path / "val.npy", 1, 48) is None
    path.write_bytes(pickle.dumps(Planted(sign)))
    assert _read(path, 1, 48) is None


@pytest.fixture
def archive(monkeypatch):
    """Function of {name in the zip: content}: what the next download brings."""
    made = {}

    def zipped(entries: dict[str, bytes]) -> None:
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as file:
            for name, text in entries.items():
                info = zipfile.ZipInfo(name)
                info.external_attr = (0o120777 if text.startswith(b"->") else 0o644) << 16  # links are text, too
                file.writestr(info, text, zipfile.ZIP_DEFLATED)
        made["content"] = content.getvalue()

    monkeypatch.setattr(tudataset, "_open", lambda url: io.BytesIO(made["content"]))
    monkeypatch.setattr(tudataset, "TOY", Path("elsewhere"))  # or the set would not be fetched
    return zipped


def test_a_zip_writes_only_its_set_s_text_files_into_its_own_folder(sign, archive, tmp_path):
    texts = {path.name: path.read_bytes() for path in TOY.glob("*.txt")}
    planted = {"../../TOY_up.txt": b"1", "/TOY_root.txt": b"1", "TOY/../../../TOY_out.txt": b"1", "evil.py": b"1"}
    planted |= {"TOY/TOY_link.txt": b"->/etc/passwd", "..\\TOY_back.txt": b"1", "TOY/TOY_dir/": b"", "../x": b"1"}
    archive({f"TOY/{name}": text for name, text in texts.items()} | planted)
    root = tmp_path / "deep" / "data"
    root.mkdir(parents=True)
    tudataset.load_tudataset("TOY", str(root))
    found = {path for path in tmp_path.rglob("*") if path.is_file()}
    folder = root / "tudataset" / "TOY"
    assert all(path.parent == folder or path.name == ".TOY.lock" for path in found), found
    assert not any(path.is_symlink() for path in found) and not Path("/TOY_root.txt").exists()
    assert (folder / "TOY_link.txt").read_bytes() == b"->/etc/passwd"
    assert not list(folder.glob("evil*"))


def test_a_zip_bomb_and_an_endless_download_are_refused(archive, tmp_path, monkeypatch):
    monkeypatch.setattr(tudataset, "MOST_BYTES", 10_000)
    archive({"TOY/TOY_A.txt": b"1, 2\n" * 10_000})
    with pytest.raises(UserError, match="unpacks to 50,000 bytes"):
        tudataset.load_tudataset("TOY", str(tmp_path))
    monkeypatch.setattr(tudataset, "MOST_BYTES", 10)
    with pytest.raises(UserError, match="has more than 10 bytes"):
        tudataset.load_tudataset("TOY", str(tmp_path))
    assert not (tmp_path / "tudataset" / "TOY").exists()


def test_text_files_of_a_set_are_numbers_alone(sign, tmp_path):
    for path in TOY.glob("*.txt"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    code = b"__import__('os').mkdir('x')\n"
    for content in (pickle.dumps(Planted(sign)), code, b"\x93NUMPY\x01\x00", b"1e400\n", b"\xff"):
        (tmp_path / "TOY_graph_labels.txt").write_bytes(content)
        with pytest.raises(UserError, match="TOY_graph_labels.txt"):
            tudataset.read_tudataset("TOY", tmp_path)


def test_a_tar_of_imagenet_escapes_nowhere(sign, tmp_path):
    """Images are read out of the tars one by one; nothing is unpacked to the names in them."""

    def tar(*members: tuple[str, bytes, bytes]) -> bytes:
        made = io.BytesIO()
        with tarfile.open(mode="w", fileobj=made) as file:
            for name, content, kind in members:
                info = tarfile.TarInfo(name)
                info.type, info.linkname, info.size = kind, "/etc/passwd", len(content)
                file.addfile(info, io.BytesIO(content))
        return made.getvalue()

    image, file = grey("JPEG"), tarfile.REGTYPE
    odd = [("../../escaped.JPEG", image, file), (str(tmp_path / "absolute.JPEG"), image, file)]
    odd += [("n01440764_link.JPEG", b"", tarfile.SYMTYPE), ("n01440764_hard.JPEG", b"", tarfile.LNKTYPE)]
    odd += [("device.JPEG", b"", tarfile.CHRTYPE), ("pipe.JPEG", b"", tarfile.FIFOTYPE)]
    inner = tar(("n01440764_1.JPEG", image, file), *odd)
    folder = tmp_path / "tars"
    folder.mkdir()
    train, val = ("n01440764.tar", inner, file), ("ILSVRC2012_val_00000001.JPEG", image, file)
    (folder / "ILSVRC2012_img_train.tar").write_bytes(tar(train, ("../../up.tar", inner, file)))
    (folder / "ILSVRC2012_img_val.tar").write_bytes(tar(val, *odd))
    before = set(tmp_path.parent.iterdir())
    root = tmp_path / "root" / "data"
    root.mkdir(parents=True)
    prepare(folder, str(root))
    assert [example["file_name"] for example in load_source("test", str(root))] == ["ILSVRC2012_val_00000001.JPEG"]
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in files if not {root, folder} & {*path.parents}]
    assert set(tmp_path.parent.iterdir()) == before
    assert not any(path.is_symlink() for path in tmp_path.rglob("*"))


def test_features_of_a_prepared_data_set_name_no_foreign_class(sign, tmp_path, monkeypatch):
    (tmp_path / "planted_module.py").write_text(f"import os; os.mkdir({str(sign)!r})")
    monkeypatch.syspath_prepend(str(tmp_path))
    folder = tmp_path / "imagenet2012" / "5.1.0"
    folder.mkdir(parents=True)
    (folder / "dataset_info.json").write_text("{}")
    for key in ("pythonClassName", "type"):
        planted = {"featuresDict": {"features": {"x": {key: "planted_module.X"}}}}
        (folder / "features.json").write_text(json.dumps(planted))
        with pytest.raises(UserError, match="planted_module.X"):
            load_source("train", str(tmp_path))
    for content in (b"{", pickle.dumps(Planted(sign))):
        (folder / "features.json").write_bytes(content)
        with pytest.raises(UserError, match="features.json: cannot be read"):
            load_source("train", str(tmp_path))


def grey(kind: str, size: int = 8) -> bytes:
    return encoded(Image.new("RGB", (size, size), (9, 9, 9)), kind)


def png(width: int, height: int) -> bytes:
    """A small PNG whose header claims this size."""
    content, header = grey("PNG"), b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return content[:12] + header + struct.pack(">I", zlib.crc32(header)) + content[33:]


def jpeg(width: int, height: int) -> bytes:
    """A small JPEG whose header claims this size."""
    content = grey("JPEG", 16)
    start = content.index(b"\xff\xc0") + 5
    return content[:start] + struct.pack(">HH", height, width) + content[start + 4 :]


def test_pictures_that_claim_to_be_huge_are_refused_before_memory_is_taken():
    for content in (png(100_000, 100_000), jpeg(65_000, 65_000), png(MOST_PIXELS // 1000 + 1, 1000)):
        with pytest.raises(CorruptImage, match="pixels; at most|DecompressionBomb"):
            decode(content)


def test_only_plain_picture_formats_are_read(sign, tmp_path):
    """Pillow hands an EPS file to Ghostscript, whatever its name says."""
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(" + str(sign).encode() + b") (w) file closefile\n%%EOF\n"
    for content in (eps, pickle.dumps(Planted(sign)), b"#!/bin/sh\nmkdir x\n"):
        with pytest.raises(CorruptImage):
            decode(content)
    for kind in ("PNG", "BMP", "GIF", "TIFF", "WEBP", "PPM", "JPEG", "MPO"):
        assert decode(grey(kind)).size == (8, 8)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.png").write_bytes(eps)
    with pytest.raises(CorruptImage):
        decode(folder_source(tmp_path)[0]["image"])
