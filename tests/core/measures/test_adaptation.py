"""The continuous cache and dynamic evaluation, compared with their definitions."""

import dataclasses
import math
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from tests.core.builders import V, draw_stream, draw_tokens, small_model, small_rnn
from txlcli.config.settings import EvalSettings
from txlcli.core.measures.adaptation import (
    FLATNESS_STEPS,
    DynamicSettings,
    gradient_rms,
    mixed_losses,
    score_dynamic,
    score_with_cache,
    search_cache,
    theta_candidates,
)
from txlcli.core.model.dropout import Dropout
from txlcli.core.reading.scoring import Stream, score

B, L, M, SIZE = 2, 5, 7, 6
SETTINGS = EvalSettings(seg_len=L, mem_len=M, batch_size=B, max_distance=20)
ONE_LANE = EvalSettings(seg_len=L, mem_len=M, batch_size=1)
assert_close = partial(np.testing.assert_allclose, rtol=1e-5)


def rms_of(model, size=1.0):
    """RMS of the gradients, all of this size."""
    return [torch.full_like(parameter, size) for parameter in model.parameters()]


@pytest.mark.parametrize("seg_len", [17, 5, 1])
def test_the_cache_weights_the_tokens_that_followed_similar_states(seg_len):
    text, theta, states = draw_stream(B * 17, dataclasses.replace(SETTINGS, seg_len=seg_len)), 0.7, []
    losses = score(text, on_segment=lambda hidden, *_: states.append(hidden)).losses_nats
    hidden, targets = torch.cat(states, dim=1), text.targets.reshape(B, 17)
    given = score_with_cache(text, size=SIZE, thetas=[0.0, theta])[1].reshape(2, B, 17)
    for lane in range(B):
        assert given[1, lane, 0] == pytest.approx(math.exp(-losses[17 * lane]))  # the cache is empty
        for place in range(1, 17):
            entries = range(max(0, place - SIZE), place)
            weights = [math.exp(theta * float(hidden[lane, place] @ hidden[lane, entry])) for entry in entries]
            same = [targets[lane, entry] == targets[lane, place] for entry in entries]
            expected = sum(weight for weight, hit in zip(weights, same, strict=True) if hit) / sum(weights)
            assert given[1, lane, place] == pytest.approx(expected, abs=1e-5)
            assert given[0, lane, place] == pytest.approx(int(sum(same)) / len(same), abs=1e-6)


def test_the_mixture_sums_to_one_over_the_vocabulary():
    text, total = draw_stream(9, EvalSettings(seg_len=3, mem_len=M, batch_size=1)), np.zeros(9)
    for token in range(V):
        # Only the last target is replaced, so that the cache before it stays what it was.
        changed = dataclasses.replace(text, targets=np.concatenate([text.targets[:-1], [token]]))
        scores, cached = score_with_cache(changed, size=SIZE, thetas=[0.1])
        total += np.exp(-mixed_losses(scores.losses_nats, cached[0], 0.3))
    assert total[-1] == pytest.approx(1.0, abs=1e-5)


def test_the_cache_does_not_change_the_losses_of_the_model():
    text = draw_stream(23, SETTINGS)
    scores, cached = score_with_cache(text, size=SIZE, thetas=[0.1, 0.2])
    expected = score(text).losses_nats
    assert_close(scores.losses_nats, expected, rtol=1e-6)
    assert cached.shape == (2, 23)
    assert_close(mixed_losses(scores.losses_nats, cached[0], 0.0), expected, rtol=1e-6)
    for start in (0, 12):  # the cache of a lane is empty, so that a mixture changes nothing
        assert mixed_losses(scores.losses_nats, cached[0], 0.5)[start] == pytest.approx(expected[start], rel=1e-5)


def test_the_search_returns_the_parameters_with_the_lowest_loss():
    losses = -np.log(np.array([0.1, 0.2, 0.4], dtype=np.float32))
    useless, useful = np.zeros(3, dtype=np.float32), np.array([0.9, 0.9, 0.9], dtype=np.float32)
    assert search_cache(losses, np.stack([useless, useful]), [0.1, 0.2]) == (0.2, 0.6)  # the largest candidate
    assert search_cache(losses, np.stack([useless, useless]), [0.1, 0.2])[1] == 0.0


def test_candidates_of_theta_use_the_hidden_states_of_the_given_settings():
    near = EvalSettings(seg_len=17, mem_len=M, batch_size=1, max_distance=1)
    text, states = draw_stream(17, near), []
    score(text, on_segment=lambda hidden, *_: states.append(hidden))
    products = (states[0][0] @ states[0][0].mT)[torch.tril_indices(17, 17, -1).unbind()]
    expected = [step / float(products.std()) for step in FLATNESS_STEPS]
    assert theta_candidates(text.model, text.inputs, near) == pytest.approx(expected, rel=1e-9)
    far = dataclasses.replace(near, max_distance=20)
    assert theta_candidates(text.model, text.inputs, far) != pytest.approx(expected, rel=1e-3)


def test_dynamic_evaluation_equals_its_definition():
    text = draw_stream(17, dataclasses.replace(SETTINGS, batch_size=1))
    model, dynamic = text.model, DynamicSettings(lr=0.01, decay=0.1)
    rms = [0.01 + torch.rand_like(parameter) for parameter in model.parameters()]
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    given = score_dynamic(text, dynamic, rms).losses_nats
    assert all(torch.equal(parameter, before[name]) for name, parameter in model.named_parameters())

    typical = float(torch.cat([one.flatten() for one in rms]).mean())
    adapted, expected = small_model(), []
    memory = adapted.first_memory(1, M)
    for first in range(0, 17, L):
        read, wanted = (torch.from_numpy(part[first : first + L])[None] for part in (text.inputs, text.targets))
        hidden, memory = adapted(read, memory, mem_len=M, key_limit=M, max_distance=20)
        losses = adapted.losses(hidden, wanted)
        expected += losses[0].tolist()
        gradients = torch.autograd.grad(losses.mean(), list(adapted.parameters()))
        with torch.no_grad():
            for (name, parameter), gradient, size in zip(adapted.named_parameters(), gradients, rms, strict=True):
                moved = parameter - 0.01 * gradient / (size + typical)
                back = (0.1 * size / typical).clamp(max=1.0)
                parameter.copy_(moved + back * (before[name] - moved))
    assert_close(given, expected)


def test_auxiliary_classifiers_do_not_change_dynamic_evaluation():
    kind = {"position": "learned", "n_positions": L}
    vanilla, plain = small_model(auxiliary_losses=True, **kind), small_model(**kind)
    plain.load_state_dict(vanilla.state_dict(), strict=False)
    settings, dynamic = EvalSettings(seg_len=L, mem_len=0, batch_size=1), DynamicSettings(lr=0.1, decay=0.1)
    losses = []
    for model in (vanilla, plain):
        text = draw_stream(17, settings, model)
        losses.append(score_dynamic(text, dynamic, gradient_rms(model, text.inputs, settings, 1)).losses_nats)
    np.testing.assert_array_equal(*losses)


@pytest.mark.parametrize("lr", [0.0, 1e-30])
def test_with_steps_of_length_zero_dynamic_evaluation_equals_plain_evaluation(lr):
    text = draw_stream(23, SETTINGS)
    given = score_dynamic(text, DynamicSettings(lr=lr, decay=0.0), rms_of(text.model))
    assert_close(given.losses_nats, score(text).losses_nats)


def test_dynamic_evaluation_uses_the_requested_precision():
    model, dynamic = small_model(dtype=torch.float32), DynamicSettings(lr=1e-3, decay=0.0)
    losses = []
    for precision in ("fp32", "bf16"):
        text = draw_stream(23, SETTINGS, model=model.on(precision=precision))
        losses.append(score_dynamic(text, dynamic, rms_of(text.model)).losses_nats)
    exact, short = losses
    assert not np.array_equal(exact, short)
    assert_close(exact, short, atol=0.1)


def test_embeddings_of_words_unseen_in_training_change_slowly():
    # Their gradients were 0 in training; divided by that alone, the first step would be far too large.
    text = draw_stream(17, ONE_LANE)
    rms = rms_of(text.model, 1e-3)
    rms[0].zero_()
    moved = score_dynamic(text, DynamicSettings(lr=1e-5, decay=0.0), rms).losses_nats
    still = score(text).losses_nats
    assert not np.array_equal(moved, still)
    assert_close(moved, still, atol=0.5)


def test_padding_of_the_last_lane_does_not_train_the_model():
    # 21 tokens in five lanes of 5: the last four positions of the last lane are padding, with segments after them.
    # Lanes are padded with token 0. If tokens 0 and 1 change places in model and text, the padding becomes token 1.
    swap, dynamic = torch.tensor([1, 0, *range(2, V)]), DynamicSettings(lr=0.1, decay=0.0)
    text, swapped = draw_stream(21, EvalSettings(seg_len=2, mem_len=M, batch_size=5)), small_model()
    with torch.no_grad():
        for rows in (swapped.embedding.tables[0], swapped.softmax.biases[0]):
            rows.copy_(rows[swap])
    other = Stream(swapped, swap.numpy()[text.inputs], swap.numpy()[text.targets], text.settings)
    losses = [score_dynamic(each, dynamic, rms_of(each.model)).losses_nats for each in (text, other)]
    assert len(losses[0]) == 21
    assert_close(*losses, rtol=1e-6)


def test_gradient_rms_is_the_root_mean_square_over_segments():
    model, tokens = small_model(), draw_tokens(1, B * 3 * L + 1)[0]
    lanes = [ids.view(B, 3 * L).split(L, dim=1) for ids in (tokens[:-1], tokens[1:])]
    segments = list(zip(*lanes, strict=True))[:2]  # the last one of a lane may be short
    given = gradient_rms(model, tokens.numpy(), SETTINGS, 9)
    memory, squares = model.first_memory(B, M), []
    for read, wanted in segments:
        hidden, memory = model(read, memory, mem_len=M, key_limit=M, max_distance=20)
        gradients = torch.autograd.grad(model.losses(hidden, wanted).mean(), list(model.parameters()))
        squares.append([gradient**2 for gradient in gradients])
    for number, one in enumerate(given):
        torch.testing.assert_close(one, ((squares[0][number] + squares[1][number]) / 2).sqrt())


def test_gradients_of_an_lstm_are_computed_without_cudnn_and_dropout():
    # cuDNN computes them in training mode only; on a CPU it is not used.
    model, seen = small_rnn("lstm", dropout=0.5, word_dropout=0.5), {nn.LSTM: set(), Dropout: set()}
    for module in model.modules():
        if type(module) in seen:
            module.register_forward_pre_hook(
                lambda module, _: seen[type(module)].add((module.training, torch.backends.cudnn.enabled))
            )
    text = draw_stream(23, EvalSettings(seg_len=L, mem_len=0, batch_size=1), model)
    rms = gradient_rms(model, text.inputs, text.settings, 1)
    given = score_dynamic(text, DynamicSettings(lr=1e-30, decay=0.0), rms)
    assert seen == {nn.LSTM: {(False, False)}, Dropout: {(False, False)}}
    assert_close(given.losses_nats, score(text).losses_nats)
