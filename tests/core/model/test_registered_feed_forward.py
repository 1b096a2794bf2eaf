"""A feed-forward sublayer that is registered from outside the package: its matrices and how layers use its output."""

import pytest
from torch import nn

from tests.core.builders import model_settings
from tests.extensions import registered_feed_forward
from txlcli.core.architectures.registry import make_model
from txlcli.core.model.sublayers import FeedForward, GatedFeedForward, register_feed_forward
from txlcli.errors import UsageError


class Wide(GatedFeedForward):
    """A gate whose width does not follow from the number of matrices."""

    def __init__(self, settings):
        super().__init__(settings)
        self.ff_gate = nn.Linear(settings.d_model, settings.d_inner)


def test_a_sublayer_without_matrices_is_rejected():
    with pytest.raises(ValueError, match="1 matrix or more"):
        register_feed_forward("none", FeedForward, matrices=0)


@pytest.mark.parametrize(("cls", "matrices", "what"), [(GatedFeedForward, 2, "3 matrices"), (Wide, 3, "inner_width")])
def test_the_matrices_must_be_those_that_were_registered(cls, matrices, what):
    with registered_feed_forward("mine", cls, matrices=matrices), pytest.raises(UsageError, match=what):
        make_model(model_settings(feed_forward="mine"), 7)
