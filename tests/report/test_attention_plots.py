"""The attention figures show the given numbers."""

import warnings

import numpy as np
import pytest
from matplotlib.figure import Figure

from txlcli.report import attention_plots

N, H, DISTANCES = 3, 2, 7


def random_attention(seed=0):
    """(N, H, n), each row summing to 1."""
    drawn = np.random.default_rng(seed).random((N, H, DISTANCES)) + 0.01
    return drawn / drawn.sum(-1, keepdims=True)


def head(rows=5, columns=11):
    attention = np.random.default_rng(1).random((rows, columns))
    attention[2, :3] = np.nan
    return attention


@pytest.fixture
def figures_(monkeypatch):
    """Collect figures instead of writing them."""
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    return figures


def test_rows_are_heads_from_the_first_layer_up_and_distance_0_is_at_the_right(figures_, tmp_path):
    attention = random_attention()
    attention_plots.plot_by_distance(tmp_path / "five.png", {"": attention}, title="Attention")
    axes = figures_[0].axes[0]
    (image,) = axes.images
    shown = np.array(image.get_array())
    assert shown.shape == (N * H, DISTANCES)
    np.testing.assert_array_equal(shown[0], attention[0, 0, ::-1])
    np.testing.assert_array_equal(shown[3], attention[1, 1, ::-1])
    assert image.origin == "lower"
    assert image.get_extent() == [6.5, -0.5, -0.5, 5.5]  # distances from left to right
    layers = {label.get_text(): place for place, label in zip(axes.get_yticks(), axes.get_yticklabels(), strict=True)}
    assert layers == {"1": 0.5, "2": 2.5, "3": 4.5}


def test_token_labels_are_not_interpreted_as_markup(tmp_path):
    targets = [" ", "\\n", "$x$", "語🦊", "supercalifragilistic"]
    assert [attention_plots.token_label(token) for token in targets] == ["␣", "\\n", "$x$", "語🦊", "supercalifrag…"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        attention_plots.plot_heads(tmp_path / "six.png", {"1.1": head()}, targets=targets, title="six")
