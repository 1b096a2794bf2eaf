"""Half loss counts the recent half; auxiliary losses follow the schedule of Al-Rfou et al."""

import numpy as np
import pytest
import torch

from tests.core.builders import draw_tokens, small_model
from txlcli.core.model.losses import Objective, counted_positions, layer_weight

B, L, M = 2, 6, 7


@pytest.mark.parametrize(("part", "counted"), [("full", [0, 1, 2, 3, 4, 5]), ("half", [3, 4, 5])])
def test_half_loss_counts_the_recent_half_of_the_positions(part, counted):
    assert list(range(L))[counted_positions(L, part)] == counted
    model, tokens, targets = small_model(), draw_tokens(B, L), draw_tokens(B, L, seed=5)
    memory = model.first_memory(B, M)
    objective, loss, _ = model.objective(tokens, targets, memory, Objective(mem_len=M, part=part, progress=0.3))
    hidden, _ = model(tokens, memory, mem_len=M)
    expected = model.losses(hidden, targets)[:, counted].mean()
    torch.testing.assert_close(objective, expected)
    torch.testing.assert_close(loss, expected)


def test_half_loss_keeps_the_whole_segment_in_the_memory():
    model, tokens = small_model(), draw_tokens(B, L)
    empty = model.first_memory(B, M)
    memories = [model.objective(tokens, tokens, empty, Objective(mem_len=M, part=part))[2] for part in ("full", "half")]
    assert all(torch.equal(*pair) for pair in zip(*memories, strict=True))
    assert memories[0][0].shape == (B, L, 14)


@pytest.mark.parametrize(
    ("layer", "progress", "weight"),
    [
        # N = 4: layer l ends at l / 8 of the training; half-way there it counts a half.
        (1, 0.0, 1.0),
        (1, 1 / 16, 0.5),
        (1, 1 / 8, 0.0),
        (2, 1 / 8, 0.5),
        (2, 1 / 4, 0.0),
        (3, 3 / 16, 0.5),
        (3, 0.375, 0.0),
        (3, 0.9, 0.0),
        (4, 0.0, 1.0),
        (4, 0.9, 1.0),
    ],
)
def test_the_weight_of_a_layer_falls_and_that_of_the_last_one_stays(layer, progress, weight):
    assert layer_weight(layer, n_layers=4, progress=progress) == pytest.approx(weight)


def vanilla(**changed):
    settings = {"position": "learned", "n_positions": L, "auxiliary_losses": True, "tie_embeddings": False}
    return small_model(n_layers=3, **{**settings, **changed})


def outputs_of(model, tokens):
    """Return the outputs of the layers, which the classifiers read."""
    seen = []
    handles = [layer.register_forward_hook(lambda *given: seen.append(given[-1][0])) for layer in model.layers]
    model(tokens, model.first_memory(B, 0), mem_len=0)
    for handle in handles:
        handle.remove()
    return [model.final_norm(hidden) for hidden in seen]


def mean_loss(softmax, hidden, targets):
    """Return the mean loss of a plain softmax with the classifier's own matrix."""
    logits = hidden @ softmax.tables[0].T + softmax.biases[0]
    return -logits.log_softmax(-1).gather(-1, targets[..., None]).mean()


@pytest.mark.parametrize("part", ["full", "half"])
@pytest.mark.parametrize("progress", [0.0, 0.1, 0.4, 1.0])
def test_the_objective_is_the_weighted_sum_of_all_predictions(part, progress):
    model, tokens, targets = vanilla(), draw_tokens(B, L), draw_tokens(B, L, seed=5)
    objective, loss, _ = model.objective(
        tokens, targets, model.first_memory(B, 0), Objective(mem_len=0, part=part, progress=progress)
    )
    first = 3 if part == "half" else 0
    hidden = [output[:, first:] for output in outputs_of(model, tokens)]
    wanted = targets[:, first:]
    main = mean_loss(model.softmax, hidden[2], wanted)
    torch.testing.assert_close(loss, main)
    expected = main
    for number, ends in enumerate([1 / 6, 2 / 6, None]):  # layers 1 and 2 of 3 end at l / 6
        weight = 1.0 if ends is None else max(0.0, 1 - progress / ends)
        if number < 2:
            expected = expected + weight * mean_loss(model.auxiliary.next_token[number], hidden[number], wanted)
        two_ahead = mean_loss(model.auxiliary.token_after[number], hidden[number][:, :-1], wanted[:, 1:])
        expected = expected + weight * 0.5 * two_ahead
    torch.testing.assert_close(objective, expected, rtol=0, atol=1e-10)


def test_the_classifiers_do_not_change_predictions():
    model, tokens = vanilla(), draw_tokens(B, L)
    with torch.no_grad():
        before = model.log_probs(model(tokens, model.first_memory(B, 0), mem_len=0)[0])
        for parameter in model.auxiliary.parameters():
            parameter.fill_(np.nan)
        assert torch.equal(model.log_probs(model(tokens, model.first_memory(B, 0), mem_len=0)[0]), before)


def test_classifiers_over_bands_are_adaptive_too():
    model, tokens = vanilla(cutoffs=(5, 11), div_val=2), draw_tokens(B, L)
    objective, loss, _ = model.objective(tokens, tokens, model.first_memory(B, 0), Objective(mem_len=0))
    objective.backward()
    assert objective > 3 * loss
    assert all(parameter.grad is not None for parameter in model.parameters())
