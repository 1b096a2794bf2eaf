"""The scales: every model can be built, and the parts are the same at all of them."""

import pytest

from txlcli.core.architectures.registry import count_parameters
from txlcli.paper import published
from txlcli.workflows.reproduction import scales
from txlcli.workflows.reproduction.items import ITEMS
from txlcli.workflows.reproduction.section import parts

EVERY = {name: scales.get(name) for name in ("paper", "small", "tiny")}
ENCODINGS = {
    "Ours": "relative",
    "Shaw et al. (2018)": "shaw",
    "Vaswani et al. (2017)": "sinusoid",
    "Al-Rfou et al. (2018)": "learned",
}


@pytest.mark.parametrize("name", EVERY)
def test_every_item_has_models_and_every_model_a_text_and_can_be_built(name):
    scale = EVERY[name]
    assert {key for item in ITEMS for key in parts(item)} == set(scale.models)
    for settings in (model.settings() for model in scale.models.values()):
        assert settings.corpus.store in scale.texts
        assert count_parameters(settings.model, settings.published.vocab_size or 300_000) > 0


def test_ablations_have_the_settings_of_the_papers_rows():
    for scale in EVERY.values():
        keys = parts("table6")[:9]
        for row, key in zip(published.TABLES[6].rows[:9], keys, strict=True):
            settings = scale.models[key].settings()
            assert (settings.train.mem_len > 0) == row.recurrence
            assert settings.model.position == ENCODINGS[row.encoding]
            assert settings.train.loss_part == row.loss_part
        lengths = [scale.models[key].settings().train.seg_len for key in parts("table10")]
        assert lengths[0] == lengths[1] < lengths[3] <= lengths[2]  # longer without memory


@pytest.mark.parametrize("name", EVERY)
def test_models_of_the_frontier_have_as_many_parameters_and_tokens_and_see_as_many_keys_in_evaluation(name):
    models = {part: EVERY[name].models[part].settings() for part in parts("frontier")}
    assert len(models) == 40
    counts = {part: count_parameters(settings.model, 256) for part, settings in models.items()}
    assert max(counts.values()) <= 1.01 * min(counts.values())
    steps = {(one.train.batch_size * one.train.seg_len, one.train.max_steps) for one in models.values()}
    assert len(steps) == 1
    for part, settings in models.items():
        assert settings.model.position in part
        seg_len, mem_len = settings.eval.seg_len, settings.model.memory_keys(settings.eval.mem_len)
        keys = settings.model.mean_keys(seg_len=seg_len, mem_len=mem_len)
        base = models["frontier-recurrence-relative-paper"]
        expected = base.train.mem_len + (base.train.seg_len + 1) / 2
        assert keys < expected if "rmt" in part else keys == pytest.approx(expected, abs=0.5)
        mem_len = settings.model.memory_keys(settings.train.mem_len)
        trained_keys = settings.model.mean_keys(seg_len=settings.train.seg_len, mem_len=mem_len)
        assert trained_keys == pytest.approx(0.625 * expected, abs=0.1) if "window" in part else trained_keys == keys
        assert (settings.train.mem_len > 0) == ("recurrence" in part or "compressive" in part)


@pytest.mark.parametrize("name", EVERY)
def test_without_recurrence_max_distance_is_the_segment_length(name):
    for settings in (model.settings() for key, model in EVERY[name].models.items() if "alone" in key):
        trained = settings.train.seg_len if settings.model.position in ("relative", "shaw") else None
        assert settings.evaluation_settings().max_distance == trained


def test_parts_with_the_same_model_share_a_run():
    tiny = EVERY["tiny"]
    assert tiny.run_name("sentences-xl", 1) == tiny.run_name("short-xl", 1) == "tiny-short-xl-1"
    assert EVERY["paper"].run_name("short-xl", 1) == "paper-short-xl-1"
