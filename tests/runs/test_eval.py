"""What eval.py evaluates: the run's own data, but for what is given."""

import pytest
from hydra import compose

from eval import check_typed, choose_source, choose_splits, choose_task
from plstm.errors import UserError
from plstm.runs.compose import to_config, to_eval_config
from plstm.runs.overrides import check_machine_keys


@pytest.fixture
def data_of(composed):
    """Function of (arguments of the run, those of the evaluation): the task's data after both."""

    def data_of(run: list[str], *arguments: str):
        return choose_task(to_config(composed(*run)), to_eval_config(compose("eval", list(arguments)))).config.data

    return data_of


@pytest.mark.parametrize(
    ("run", "key", "own", "given"),
    [
        (["data.generate=false"], "generate", False, True),
        (["data.generate=true"], "generate", True, False),
        (["experiment=graphs/gin", "data.download=false"], "download", False, True),
        (["experiment=graphs/gin"], "download", True, False),
        (["data.workers=2"], "workers", 2, 0),
        (["experiment=imagenet/vit"], "max_corrupt", 0.001, 0.5),
    ],
)
def test_the_run_s_data_are_taken_but_for_what_is_given(data_of, run, key, own, given):
    assert getattr(data_of(run), key) == own
    assert getattr(data_of(run, f"data.{key}={given}"), key) == given


def test_a_key_that_the_run_s_data_lack_is_refused_where_it_was_typed(composed, data_of):
    """And not where a machine has it for all its evaluations."""
    assert data_of([], "data.download=false") == data_of([])
    config, options = to_config(composed()), to_eval_config(compose("eval", ["data.folder=x"]))
    for key in ("download", "max_corrupt"):
        with pytest.raises(UserError, match=f"data.{key}: the data of this run have no such key; leave it out"):
            check_typed({f"data.{key}"}, config, to_eval_config(compose("eval", [])))
    tokens = to_config(composed("experiment=tokens/plstm", "variant=length_32", "model.track=2"))
    with pytest.raises(UserError, match=r"data\.root: the data of this run have no such key; leave it out"):
        check_typed({"data.root"}, tokens, to_eval_config(compose("eval", [])))
    with pytest.raises(UserError, match=r"logger\.project: an evaluation logs into the run's own; leave it out"):
        check_typed({"logger.project"}, config, options)
    with pytest.raises(UserError, match=r"data\.generate: data\.folder has all images; leave it out"):
        check_typed({"data.generate"}, config, options)
    with pytest.raises(UserError, match=r"logger\.mode: weights in a file have no run to log into; leave it out"):
        check_typed({"logger.mode"}, config, to_eval_config(compose("eval", ["weights=x.safetensors"])))
    check_typed({"data.max_corrupt", "data.split", "logger.mode", "run"}, config, options)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["run=x", "weights=y"], "run: give a value, .* and not both"),
        (["run=x", "data.split=val", "data.folder=y"], "data.folder: takes the place of data.split"),
        (["run=x", "data.split=val"], "data.split=val: this run's data have no such examples"),
    ],
)
def test_bad_input_is_named(composed, arguments, line):
    config = to_config(composed("experiment=imagenet/vit", "data.name=mosaics"))  # with nothing held out for val
    options = to_eval_config(compose("eval", arguments))
    with pytest.raises(UserError, match=line):
        choose_source(options)
        choose_splits(choose_task(config, options), options)


def test_reading_processes_that_nothing_uses_are_refused_where_they_were_typed(composed):
    """And not where a machine has them for all its runs."""
    typed, config = ["data.workers=4"], to_config(composed("data.workers=4"))
    with pytest.raises(UserError, match=r"data\.workers: task arrow has no use for it; leave it out"):
        check_machine_keys(typed, config)
    check_machine_keys([], config)
    check_machine_keys(typed, to_config(composed("experiment=imagenet/plstm", "data.workers=4")))
    with pytest.raises(UserError, match=r"data\.workers: the data of this run have no such key; leave it out"):
        check_typed({"data.workers"}, config, to_eval_config(compose("eval", [])))
    check_typed({"data.workers"}, config, to_eval_config(compose("eval", ["data.folder=x"])))
