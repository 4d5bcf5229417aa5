"""ImageNet-1k (Appendices G.3 and G.4): photographs of 1,000 classes."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

from annotated_types import Interval

from data.imagenet.batches import MAX_CORRUPT
from data.imagenet.source import HELD_OUT, MosaicSource, load_source, synsets
from plstm.config import Config
from plstm.errors import UserError, require
from plstm.limits import Count, Natural, OneOf, Share
from plstm.tasks.base import MachineData
from plstm.tasks.photographs import PhotoTask


@dataclass
class ImageNetData(MachineData):
    # As `make data-imagenet` prepares it; mosaics: pictures that are drawn as they are read.
    name: Annotated[str, OneOf("imagenet2012", "mosaics")] = "imagenet2012"
    classes: int = 1000  # always
    size: Count = 224  # pixels a side of the model's input
    train_images: Count = 1_281_167  # in the prepared data, those held out included
    # Training images kept for the split `val`; 0: train on all, as the paper did, without `val`.
    held_out: Natural = HELD_OUT
    eval_images: Count | None = None  # evaluate on the first so many of a split; null: on all
    # Evaluation: the centre crop's side over the resized image's shorter side.
    crop_ratio: Annotated[float, Interval(ge=0.1, le=1)] = 1.0
    max_corrupt: Share = MAX_CORRUPT  # share of images that may be undecodable before the run ends with an error


class ImageNetTask(PhotoTask):
    """`val` is held out of the training images; `test` is the official validation set, as in papers."""

    data_schema = ImageNetData
    splits = ("train", "val", "test")

    @classmethod
    def check(cls, config: Config) -> None:
        data = config.data
        has_val = data.held_out or "val" not in {*config.loop.eval_splits, *config.loop.final_splits}
        require(
            config,
            ("data.held_out", data.held_out <= data.train_images // 10, "must be at most a tenth of data.train_images"),
            ("data.held_out", has_val, "leaves no split val; hold some out, or evaluate on test alone"),
        )
        super().check(config)

    @property
    def train_examples(self) -> int:
        return self.config.data.train_images - self.config.data.held_out

    @cached_property
    def class_names(self) -> Sequence[str]:
        """WordNet ids, such as n01440764."""
        return synsets()

    def describe_data(self) -> str:
        return f"{self.config.data.name}: {super().describe_data()}"

    def source(self, split: str) -> Sequence[dict[str, Any]]:
        data = self.config.data
        most = None if split == "train" else data.eval_images
        if data.name == "mosaics":
            counts = {"train": self.train_examples, "val": data.held_out, "test": most or data.train_images}
            return MosaicSource(split, min(counts[split], most or counts[split]))
        source = load_source(split, data.root, data.held_out, most)
        if split == "train" and len(source) != self.train_examples:
            have = f"the prepared data have {len(load_source('train', data.root, held_out=0))} training images"
            raise UserError(f"data.train_images={data.train_images}: {have}; give this number, or another data.root")
        return source
