"""The attention figures show the given numbers."""

import warnings

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from txlcli.commands import attention_plots
from txlcli.core.measures.attention_maps import strongest

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


def test_terms_are_side_by_side_on_one_scale(figures_, tmp_path):
    terms = {"a": random_attention(), "b": random_attention(1), "d": random_attention(2)}
    attention_plots.plot_by_distance(tmp_path / "seven.png", terms, title="Terms")
    panels = [axes for axes in figures_[0].axes if axes.images]
    assert [axes.get_title()[:3] for axes in panels] == ["(a)", "(b)", "(d)"]
    for axes, attention in zip(panels, terms.values(), strict=True):
        np.testing.assert_array_equal(axes.images[0].get_array()[1], attention[0, 1, ::-1])
    assert len({axes.images[0].norm for axes in panels}) == 1


def test_marked_tokens_are_red_visible_ones_grey_and_others_neither(figures_, tmp_path):
    one = head()
    marked = strongest(one)
    attention_plots.plot_heads(tmp_path / "six.png", {"head": one}, targets=list("abcde"), title="six")
    (axes,) = figures_[0].axes
    assert marked.sum() == 4 * 3 + 2
    for image, colours, shown in zip(axes.images, ("Greys", "Reds"), (~marked & ~np.isnan(one), marked), strict=True):
        assert image.get_cmap().name == colours
        np.testing.assert_array_equal(~np.ma.getmaskarray(image.get_array()), shown)
        assert image.get_extent() == [11.5, 0.5, 4.5, -0.5]  # tokens before the first target
    assert to_rgb(axes.get_facecolor()) == to_rgb(attention_plots.UNSEEN)
    assert [label.get_text() for label in axes.get_yticklabels()] == list("abcde")


def test_token_labels_are_not_interpreted_as_markup(tmp_path):
    targets = [" ", "\\n", "$x$", "語🦊", "supercalifragilistic"]
    assert [attention_plots.token_label(token) for token in targets] == ["␣", "\\n", "$x$", "語🦊", "supercalifrag…"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        attention_plots.plot_heads(tmp_path / "six.png", {"1.1": head()}, targets=targets, title="six")
