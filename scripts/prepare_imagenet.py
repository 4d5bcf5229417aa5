"""Prepare ImageNet-1k from the official tars, once: checks them, then runs TFDS's builder. TensorFlow is not needed.

    make data-imagenet MANUAL=/path/to/tars              # into $PLSTM_DATA, or ~/.cache/plstm/data
    make data-imagenet MANUAL=/path/to/tars DATA=/scratch/data ARGS=--verify

The folder MANUAL must hold the training images (Task 1 & 2) and the validation images (all tasks) of ILSVRC2012 from
https://image-net.org/download-images, free for research with an account. Takes as much space in DATA as the tars, and
up to two hours. An interrupted preparation starts over. The tars are not needed afterwards.
"""

import hashlib
import shutil
import sys
import tarfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from data.imagenet.source import NAME, TRAIN_TAR, VAL_TAR, load_source, prepare
from plstm.errors import UserError, run_script
from plstm.files import data_root
from scripts.common import Parser

PAGE = "https://image-net.org/download-images"
OFFICIAL = {  # bytes, md5
    TRAIN_TAR: (147_897_477_120, "1d675b47d978889d74fa0da5fadfb00e"),
    VAL_TAR: (6_744_924_160, "29b22e2961454d5413ddabcf34fc5622"),
}
GIB = 2**30


def check_tars(folder: Path, verify: bool) -> int:
    """Returns the tars' bytes together; raises UserError where one is missing, no tar, or not the official one."""
    missing = {name: size / GIB for name, (size, _) in OFFICIAL.items() if not (folder / name).is_file()}
    if missing:
        what = " and ".join(f"{name} ({size:.1f} GiB)" for name, size in missing.items())
        raise UserError(f"{folder}: has no {what}; download from {PAGE} (free, with an account), then MANUAL=<folder>")
    for path, (official, md5) in ((folder / name, facts) for name, facts in OFFICIAL.items()):
        if not tarfile.is_tarfile(path):
            raise UserError(f"{path}: is not a tar file; download it again from {PAGE}")
        if (size := path.stat().st_size) != official:
            what = f"{size:,} bytes, not the official {official:,}"
            print(f"{path}: {what}: an incomplete download, unless the set is meant to be smaller", file=sys.stderr)
        if verify:
            with open(path, "rb") as file:
                found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
            if found != md5:
                raise UserError(f"{path}: its md5 is {found}, not {md5}; download it again from {PAGE}")
    return sum((folder / name).stat().st_size for name in OFFICIAL)


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--manual", required=True, help="the folder with the official tars")
    parser.add_argument("--data", help="the folder of all data sets (default $PLSTM_DATA, else ~/.cache/plstm/data)")
    parser.add_argument("--verify", action="store_true", help="compare the tars' md5 first (about ten minutes)")
    options = parser.parse_args()
    if not options.manual:
        raise UserError("MANUAL: name the folder with the official tars, MANUAL=/path/to/tars")
    tars, folder = Path(options.manual), data_root(options.data)
    if not list(folder.glob(f"{NAME}/[0-9]*/dataset_info.json")):
        total = check_tars(tars, options.verify)
        if (free := shutil.disk_usage(folder).free) < 1.05 * total:
            left = ", ".join(str(path) for path in (folder / NAME).glob("incomplete*"))
            hint = f"; {left} is left from an interrupted preparation, delete it" if left else ""
            sizes = f"{free / GIB:.1f} GiB free, but {1.05 * total / GIB:.1f} needed"
            raise UserError(f"{folder}: {sizes}; name another folder, DATA=<folder>{hint}")
        print(f"preparing {total / GIB:.1f} GiB in {folder / NAME}", flush=True)
        try:
            prepare(tars, options.data)
        except (OSError, RuntimeError, ValueError, tarfile.TarError) as error:
            raise UserError(f"{tars}: cannot be prepared in {folder} ({error})") from error
    counts = [f"{split} {len(load_source(split, options.data)):,}" for split in ("train", "val", "test")]
    print(f"{folder / NAME}: ready; images: {', '.join(counts)} (val is held out of the official training images)")


if __name__ == "__main__":
    run_script(main)
