"""Pictures of one's own: a folder with a folder of pictures for each class."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Interval
from omegaconf import MISSING

from data.imagenet.folders import Pictures, read_pictures
from plstm.errors import UserError
from plstm.limits import Count, Share
from plstm.tasks.base import MachineData
from plstm.tasks.photographs import PhotoTask


@dataclass
class FolderData(MachineData):
    # With train/<class>/ and val/<class>/, or train/<class>/ or <class>/ alone. A run's id has what is in it, below.
    path: str | None = None
    size: Count = 224  # pixels a side of the model's input
    # Share of each class's training pictures kept for `val`; null: 0.1 where there is no val/.
    held_out: Annotated[float, Interval(ge=0.01, le=0.5)] | None = None
    # Evaluation: the centre crop's side over the resized picture's shorter side.
    crop_ratio: Annotated[float, Interval(ge=0.1, le=1)] = 1.0
    max_corrupt: Share = 0.01  # share of pictures that may be undecodable before the run ends with an error
    # The rest follows from the folder; see `FolderTask.infer_data`.
    class_names: list[str] = MISSING  # of the folders, sorted
    classes: int = MISSING
    train_images: int = MISSING  # those held out excepted
    digest: str = MISSING  # of every picture's path in the folder and size in bytes


class FolderTask(PhotoTask):
    """`val` is the folder's val/, or held out of the training pictures."""

    data_schema = FolderData
    unused_keys = ("root",)
    splits = ("train", "val")
    upright = True  # as phones store most pictures turned

    @classmethod
    def infer_data(cls, data: Any) -> dict[str, Any]:
        """What the config takes from the folder: so a run's id is the same wherever the folder lies, and another once
        a class or picture is added, renamed, removed or edited, as far as that changes its size in bytes."""
        pictures = cls._read(data.path, data.held_out)
        return {
            "class_names": pictures.train.classes,
            "classes": len(pictures.train.classes),
            "train_images": len(pictures.train),
            "digest": pictures.digest,
        }

    @staticmethod
    def _read(path: str | None, held_out: float | None) -> Pictures:
        if not path:
            raise UserError("data.path: name the folder of pictures, data.path=...")
        return read_pictures(path, held_out)

    @property
    def class_names(self) -> Sequence[str]:
        return self.config.data.class_names

    def describe_data(self) -> str:
        return f"{self.config.data.path}: {self.config.data.classes:,} classes, {super().describe_data()}"

    def source(self, split: str) -> Sequence[dict[str, Any]]:
        data = self.config.data
        self.check_data()
        pictures = self._read(data.path, data.held_out)
        return pictures.train if split == "train" else pictures.val
