"""Tasks by name: what a run can learn. A run chooses by `data=...`, whose files set `task`."""

from plstm.tasks.arrow import ArrowTask
from plstm.tasks.base import Task
from plstm.tasks.code import CodeTask
from plstm.tasks.distill import DistillTask
from plstm.tasks.folder import FolderTask
from plstm.tasks.graphs import GraphTask
from plstm.tasks.imagenet import ImageNetTask
from plstm.tasks.languages import LanguageTask
from plstm.tasks.series import SeriesTask
from plstm.tasks.tokens import TokenTask
from plstm.tasks.walk import WalkTask

TASKS: dict[str, type[Task]] = {
    "arrow": ArrowTask,
    "imagenet": ImageNetTask,
    "folder": FolderTask,
    "graphs": GraphTask,
    "languages": LanguageTask,
    "tokens": TokenTask,
    "series": SeriesTask,
    "code": CodeTask,
    "distill": DistillTask,
    "walk": WalkTask,
}
