"""Recipes of any values: what is accepted is kept exactly, and everything else is rejected in one line."""

import json

from hypothesis import given
from hypothesis import strategies as st

from tests.config.test_recipe import TINY
from txlcli.config import recipe
from txlcli.errors import RecipeError

VALUES = st.one_of(
    st.integers(-3, 10**6),
    st.floats(-1e3, 1e3, allow_nan=False),
    st.booleans(),
    st.sampled_from(["none", "auto", "relative", "shaw", "rotary", "adam", "sgd", "muon", "cosine", "bf16", "full"]),
    st.text(max_size=5),
    st.lists(st.integers(0, 30), max_size=3),
)
CHANGES = st.dictionaries(st.sampled_from(recipe.setting_names()), VALUES, max_size=4)


def outcome(texts):
    try:
        return recipe.resolve_text(TINY, "tiny.toml", texts), None
    except RecipeError as error:
        return None, str(error)


@given(changes=CHANGES)
def test_accepted_settings_are_kept_and_others_are_rejected_in_one_line(changes):
    texts = [f"{name}={json.dumps(value)}" for name, value in changes.items()]
    settings, refusal = outcome(texts)
    if settings is None:
        assert refusal.startswith("tiny.toml")
    else:
        assert recipe.resolve(json.loads(json.dumps(recipe.to_table(settings))), where="run.json") == settings
