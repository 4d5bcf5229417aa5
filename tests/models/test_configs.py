"""What joins several keys of a model's config is checked, and named in one line."""

import pytest

from plstm.errors import UserError
from plstm.models import (
    EfficientNetConfig,
    GraphConfig,
    LanguageConfig,
    Mamba2DConfig,
    SequenceConfig,
    SS2DConfig,
    ViLConfig,
    build_model,
)
from tests.models.vision_models import VIT, tiny

WRONG = [
    (tiny, {"modes": ["P", "attention"]}, "modes.*cannot alternate"),
    (tiny, {"pooling": "class_token"}, "pooling=class_token"),
    (tiny, {"modes": ["D"], "gates": "printed"}, "gates=printed: only model.modes=P has it"),
    (tiny, {"modes": ["attention"], "gates": "printed"}, "gates=printed: only model.modes=P has it"),
    (tiny, {"modes": ["attention"], "stm_bias_only": True}, "stm_bias_only=True: only model.modes=P or D has it"),
    (tiny, {"depth": 3}, "depth=3.*2 model.modes"),
    (tiny, {"patch_size": 5}, "patch_size=5.*model.image_size=16"),
    (tiny, {"heads": 3}, "heads=3.*model.dim=16"),
    (tiny, {"heads": 8}, "heads=8.*model.dim=16"),
    (tiny, {"method": "fused", "image_size": 65 * 4}, "method=fused: takes 64 patches a side; use auto"),
    (tiny, {"track": 3}, "track=3: times model.heads must divide model.dim=16"),
    (tiny, {"track": 2, "gates": "printed"}, "gates=printed: model.track has gates of its own"),
    (tiny, {"transitions": "delta"}, "transitions=delta: needs model.track"),
    (tiny, {"track": 2, **VIT}, "track=2: only model.modes=P or D has it"),
    (ViLConfig, {"image_size": 200}, "patch_size=16: must divide model.image_size=200"),
    (ViLConfig, {"depth": 5}, "depth=5: must be even"),
    (ViLConfig, {"heads": 5}, "heads=5: must divide 2 x model.dim=192"),
    (ViLConfig, {"dim": 7, "heads": 1}, "dim=7: must be a multiple of 2"),
    (SS2DConfig, {"depths": [1, 1]}, "depths=.*each of the 4 stages"),
    (SS2DConfig, {"image_size": 48}, "image_size=48: must be a multiple of 32"),
    (Mamba2DConfig, {"depths": [1, 1]}, "depths=.*each of the 4 stages"),
    (EfficientNetConfig, {"stages": [[4, 1, 1, 1, 8]]}, "stages=.*odd kernel"),
    (EfficientNetConfig, {"stages": [[3, 1, 1, 8]]}, "stages="),
    (SequenceConfig, {"blocks": ["plstm"], "track": 3}, "track=3: must divide model.dim=64"),
    (SequenceConfig, {"track": 3}, "track=3: only model.blocks=plstm has it"),
    (SequenceConfig, {"blocks": ["mamba2"], "head_dim": 48}, "head_dim=48: the channels of a head, 48, must divide"),
    (SequenceConfig, {"blocks": ["mamba2"], "inner_dim": 96}, "inner_dim=96: the channels of a head, 64, must divide"),
    (SequenceConfig, {"heads": 3}, "dim=64: must be a multiple of twice the heads, 6"),
    (LanguageConfig, {"kind": "lstm", "refinements": 2}, "refinements=2: only model.kind=pr_lstm or pr_rnn"),
    (LanguageConfig, {"kind": "transformer", "dim": 60}, "dim=60"),
    (LanguageConfig, {"depth": 2}, "depth=2: only model.kind=transformer"),
    (GraphConfig, {"heads": 5}, "dim=96: must be even and a multiple of model.heads=5"),
    (GraphConfig, {"kind": "gin", "p_norm": "linf"}, "p_norm=linf: only model.kind=plstm"),
    (GraphConfig, {"kind": "plstm", "lstm_pool": "h"}, "lstm_pool=h: only model.kind=lstm"),
]


@pytest.mark.parametrize(("config", "changes", "message"), WRONG)
def test_what_does_not_fit_together_is_named(config, changes, message):
    with pytest.raises(UserError, match=f"^model.{message}"):
        config(**changes).check()


def test_attention_has_no_gates_that_must_divide_the_channels():
    tiny(heads=8, **VIT).check()


def test_a_size_that_only_the_data_know_is_asked_for():
    with pytest.raises(UserError, match="a model of family language needs 'classes', and has {'vocabulary': 3}"):
        build_model(LanguageConfig(), 0, {"vocabulary": 3})
