"""What can be known of CUDA without a GPU: a fake device has shapes, number formats and strides, and runs no kernel.

This shows that no operation mixes devices, that every operation takes the shapes and number formats it is given under
autocast and the scaler of fp16, and what makes the host wait for the device. It cannot show a number, whether CUDA's
kernels take what PyTorch's front end lets pass, nor their time: for that there is no way but a GPU.

Each group of checks runs in a process of its own.
"""

import pytest

from tests.benchmarks import launches
from tests.core.device_cases import EVERY_PRECISION, PRECISIONS, one_precision_each, that_read_differently
from tests.core.fake_cuda import SOURCE, problem
from tests.core.fake_cuda.graphs import INVALID, WAITS
from tests.core.fake_devices import build, call
from txlcli.config import recipe as recipes
from txlcli.core.architectures.registry import count_parameters

CANNOT_CAPTURE = "CUDA cannot capture the kernels of a step as a graph ({}): launched one by one, they take longer"

if reason := problem():
    pytest.skip(reason, allow_module_level=True)


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """The helper, built in two seconds."""
    built = tmp_path_factory.mktemp("fake_cuda") / "libfakecuda.so"
    ended = build(built, SOURCE)
    assert not ended.returncode, ended.stderr
    return built


@pytest.fixture(scope="session")
def outcomes_of(library):
    """What each check of a group gave; none may have failed."""

    def run(group):
        outcomes = call(library, "tests.core.fake_cuda.checks:outcomes_of", group)
        failed = [f"{name}: {outcome}" for name, outcome in outcomes.items() if isinstance(outcome, str)]
        assert not failed, "\n".join(failed)
        return outcomes

    return run


@pytest.fixture(scope="session")
def token_kernels(outcomes_of):
    """Kernels of a layer, other kernels, and the names of the former, of each case."""
    return outcomes_of("tokens")


def of_each(pairs, fact):
    """What each pair of a case and a precision gives."""
    return {" ".join(pair): fact for pair in pairs}


def in_every_precision(group, pairs):
    """A group of checks with one precision for each case, and the slow group with all."""
    return pytest.mark.parametrize(
        ("group", "pairs"),
        [
            pytest.param(group, pairs, id=group),
            pytest.param(f"{group} in every precision", EVERY_PRECISION, id="every precision", marks=pytest.mark.slow),
        ],
    )


@pytest.mark.slow
@in_every_precision("training", one_precision_each(1))
def test_training_steps_mix_no_devices_and_wait_for_nothing(outcomes_of, group, pairs):
    # In fp16, the scaler asks before each step of an optimizer that does not skip steps itself.
    assert ("lamb", "fp16") in pairs
    asked = {"_local_scalar_dense": 3}
    expected = of_each(pairs, {}) | {"lamb fp16": asked}
    # Its slopes go to the device once.
    expected |= of_each([pair for pair in pairs if pair[0] == "alibi"], {"copy of pageable memory": 1})
    assert outcomes_of(group) == expected | ({"muon fp16": asked} if ("muon", "fp16") in pairs else {})


@pytest.mark.slow
@in_every_precision("determinism", one_precision_each(0))
def test_two_deterministic_training_steps_use_no_operation_without_a_deterministic_kernel(outcomes_of, group, pairs):
    assert outcomes_of(group) == of_each(pairs, [])


@pytest.mark.slow
@in_every_precision("reading", one_precision_each(2))
def test_reading_waits_for_nothing_but_the_tokens_that_are_drawn(outcomes_of, group, pairs):
    pairs = that_read_differently(pairs)
    expected = of_each(pairs, [{}, {"_local_scalar_dense": 1}])
    # Its slopes go to the device once.
    of_alibi = [pair for pair in pairs if pair[0] == "alibi"]
    expected |= of_each(of_alibi, [{"copy of pageable memory": 1}, {"_local_scalar_dense": 1}])
    assert outcomes_of(group) == expected


@pytest.mark.slow
def test_scores_are_awaited_once_and_what_a_cpu_began_goes_on_here(outcomes_of):
    assert outcomes_of("others") == {
        # Tokens go there from pinned memory.
        **{f"{case} score": {"copy to the host": 1} for case in ("relative", "lstm", "vanilla", "adaptive softmax")},
        **{f"{case} cache": {"copy to the host": 2} for case in ("relative", "lstm", "adaptive softmax")},
        **{f"{case} contexts": {"copy to the host": 2} for case in ("relative", "lstm", "adaptive softmax")},
        "vanilla windows": {"copy of pageable memory": 5, "copy to the host": 1},  # places of each of five batches
        **{f"resumed in {precision}": ["cuda:0"] for precision in PRECISIONS},
        "seeds of resumed runs": 4,
        "generator of a recomputed step": [],  # the kernels of attention repeat their masks from a seed
        **{f"{case} by graphs": [{}, ["cuda"]] for case in ("relative", "sinusoid", "learned")},
        **{f"{case} captured": [] for case in ("relative", "alibi", "lamb", "documents")},  # nothing to tell the user
        # Nothing is exchanged in a capture that was not exchanged before.
        **{f"one of two, {mode}": [[], [], "triton, not compiled, captured"] for mode in ("ddp", "zero")},
        "failed captures": [
            CANNOT_CAPTURE.format(WAITS),
            CANNOT_CAPTURE.format(INVALID),
            CANNOT_CAPTURE.format("no kernel for this"),
            CANNOT_CAPTURE.format("memory ran out"),
        ],
        "graphs beside others": [],
        # Each in the usual mode and in inference mode: a number, places, a list, a copy, a truth value.
        "noticed": {"_local_scalar_dense": 4, "nonzero": 2, "copy to the host": 4, "empty on the host": 1},
    }


@pytest.mark.slow
def test_a_part_of_the_fast_path_that_fails_is_left_out_and_training_goes_on(outcomes_of):
    outcomes = outcomes_of("failures")
    assert {failure: path for failure, (path, *_) in outcomes.items()} == {
        "nothing": "triton, compiled, captured",
        "a capture": "triton, compiled, not captured",
        "a capture without memory": "triton, compiled, not captured",
        "compiling": "triton, not compiled, captured",
        "launching": "triton, not compiled, captured",
        "the update": "triton, not compiled, captured",
        "attention": "tiles, not compiled, captured",
    }
    told = {failure for failure, (_, *lines) in outcomes.items() if lines}
    assert told == {"a capture", "a capture without memory", "launching", "attention"}  # warnings tell of the others


def test_a_reader_goes_on_without_kernels_of_triton_if_one_fails_and_says_so_once(outcomes_of):
    before, after, (warning,) = outcomes_of("failure of a reader")["reading"]
    assert before == "triton, not compiled, not captured"
    assert after == "tiles, not compiled, not captured"
    assert "txl::attention" in warning


@pytest.mark.parametrize(
    ("case", "of_layer", "others"),
    [
        ("relative fp32, batch 1", 13, 9),
        ("relative fp32, batch 3", 13, 9),
        ("relative bf16, batch 1", 15, 9),
        ("relative bf16, batch 3", 15, 9),
        ("sinusoid fp32, batch 1", 13, 20),
        ("sinusoid bf16, batch 3", 15, 20),
    ],
)
def test_a_single_token_launches_few_kernels(token_kernels, case, of_layer, others):
    """Each layer: q, k and v in one product, two writes, two kernels of attention, one product, feed-forward, norms."""
    assert token_kernels[f"kernels of a token, {case}"][:2] == [of_layer, others]


@pytest.mark.parametrize(
    ("recipe", "of_step", "gb_of_step", "of_segment", "of_token"),
    [
        ("enwik8", 45, 3.0, 14, 12),
        pytest.param("ptb", 54, 0.28, 18, 12, marks=pytest.mark.slow),
        pytest.param("ptb-memory", 48, 0.27, 16, 12, marks=pytest.mark.slow),
        pytest.param("wt103", 53, 1.8, 16, 12, marks=pytest.mark.slow),
    ],
)
def test_work_launches_at_most_so_many_kernels_per_layer_and_sends_two_bytes_per_weight(
    library, recipe, of_step, gb_of_step, of_segment, of_token
):
    """Those of a training step include everything outside the layers, divided by the number of layers."""
    counts = launches.measure(recipe, library)
    step, n_layers = counts["training"], recipes.load(recipe).model.n_layers
    assert step["kernels_per_layer"] + step["other_kernels"] / n_layers <= of_step
    settings = recipes.load(recipe)
    parameters = count_parameters(settings.model, settings.published.vocab_size)
    # Gradients in bf16; with zero also copies of matrices in bf16, and all other weights in fp32.
    for mode, collectives, least, most in (("ddp", 1, 2, 2.02), ("zero", 4, 4, 6.02)):
        of_two = counts[mode]
        # Two or three layers have a bucket each, twelve have five buckets.
        assert of_two["kernels_per_layer"] - step["kernels_per_layer"] <= 4 + collectives
        assert of_two["other_kernels"] - step["other_kernels"] <= 20
        sent = n_layers * of_two["sent_per_layer"] + of_two["other_sent"]
        assert least * parameters <= sent <= most * parameters
    assert counts["evaluation"]["kernels_per_layer"] <= of_segment
    assert 6 < counts["single token"]["kernels_per_layer"] <= of_token
    assert gb_of_step * 1e9 > step["bytes_per_layer"] > counts["evaluation"]["bytes_per_layer"] > 0
