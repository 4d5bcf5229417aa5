"""How many steps a run takes, and after how many of them it logs, evaluates and saves."""

from typing import NamedTuple, Self

from plstm.config import Config
from plstm.errors import UserError

MAX_STEPS = 2**31 - 1  # counted in 32 bits


class Plan(NamedTuple):
    """Counts of steps, all at least 1 but the warm-up's."""

    steps: int  # of the run
    steps_per_epoch: int
    warmup_steps: int
    log_every: int  # steps between two log lines, ...
    eval_every: int  # ... two evaluations, ...
    save_every: int  # ... and two checkpoints
    examples_per_step: float  # under the batch size where the last batch of an epoch is not full

    @classmethod
    def of(cls, config: Config, train_examples: int, steps_per_epoch: int, unit: str) -> Self:
        """The plan of a run whose epochs have so many examples, called `unit`, and so many steps.

        Raises UserError where the batch is larger than the data, or the steps are too many to count.
        """
        optim = config.optim
        loop = config.loop
        if not steps_per_epoch:
            have = f"{train_examples:,} training {unit}"
            raise UserError(f"optim.batch_size={optim.batch_size}: more than the {have}")
        if optim.epochs * steps_per_epoch > MAX_STEPS:
            too_many = f"more than {MAX_STEPS:,} steps of {steps_per_epoch:,} an epoch"
            raise UserError(f"optim.epochs={optim.epochs:g}: {too_many}")
        counted = steps_per_epoch if loop.unit == "epochs" else 1
        return cls(
            steps=max(round(optim.epochs * steps_per_epoch), 1),
            steps_per_epoch=steps_per_epoch,
            warmup_steps=round(optim.warmup_epochs * steps_per_epoch),
            log_every=loop.log_every * counted,
            eval_every=loop.eval_every * counted,
            save_every=(loop.save_every or loop.eval_every) * counted,
            examples_per_step=min(optim.batch_size, train_examples / steps_per_epoch),
        )
