"""One training step of every experiment and variant on tiny data: the recipe's model and optimizer do train."""

import jax
import numpy as np
import pytest

from plstm.errors import UserError
from plstm.runs.compose import to_config
from plstm.tasks import TASKS
from plstm.tasks.programs import Programs
from plstm.training.plan import Plan
from plstm.training.steps import has_part, init_state, named_leaves
from tests.config.test_experiments import CASES

# Without weight decay, which moves parameters that have no gradient.
SMALL = ["debug=smoke", "optim.batch_size=8", "optim.weight_decay=0"]
OWN = {"vision": ["model.dim=16", "model.heads=2"], "graph": ["model.dim=16"], "vil": ["model.dim=16"]}  # by family
# LAMB, binary cross entropy, mixing, stochastic depth, LayerScale; other tests train pLSTM and GIN.
QUICK = ["experiment=imagenet/vit"]


@pytest.mark.parametrize(
    "case", [case if case == QUICK else pytest.param(case, marks=pytest.mark.slow) for case in CASES], ids=" ".join
)
def test_one_step_changes_every_parameter_that_it_should(composed, tmp_path_factory, case):
    words = [*case, *SMALL, "init_from=null", "init_new=[]"]
    node = composed(*words)
    words += OWN.get(node.model.family, [])
    words += [f"data.root={tmp_path_factory.getbasetemp()}"] if node.task in ("arrow", "imagenet", "series") else []
    config = to_config(composed(*words))
    task = TASKS[config.task](config)
    programs = Programs.of(task, Plan(20, 20, 0, 1, 1, 1, 1.0))
    state = programs.layout.place_state(init_state(task.build_model(config.seed), programs.optimizer))
    before = named_leaves(jax.tree.map(np.array, state.params))
    batch = next(task.batches(programs.layout).from_step(0))
    state, metrics = programs.step(state, batch, jax.random.key(0))
    total, count = metrics.averaged["loss"]
    after = named_leaves(state.params)
    before = {name: old for name, old in before.items() if not config.optim.only or has_part(name, config.optim.only)}
    if config.optim.loss not in ("alignment", "pinball"):
        is_binary = config.optim.loss == "binary_cross_entropy"
        guess = np.log(2 if is_binary else task.sizes.get("classes") or config.data.classes)
        # Relative for many classes; in nats for two, as an untrained model so narrow has logits that differ by about 1.
        assert float(total / count) == pytest.approx(guess, rel=0.25, abs=1.0) and total / count > 0.75 * guess
    if getattr(config.model, "track", None) == 1:  # pLSTM's rotations of a single number turn nothing
        before = {name: old for name, old in before.items() if not {"before", "after"} & set(name.split("."))}
    assert not [name for name, old in before.items() if (old == after[name]).all()], "without a gradient"
    assert all(np.isfinite(new).all() for new in after.values())


def test_training_the_head_alone_is_refused_where_other_parts_would_change(composed):
    task = TASKS["arrow"](to_config(composed("experiment=arrow_48/efficientnet", "debug=smoke", "optim.only=[head]")))
    with pytest.raises(UserError, match=r"^optim\.only: training changes the model's batch norms, too"):
        Programs.of(task, Plan(20, 20, 0, 1, 1, 1, 1.0))
