"""Recipes: packaged ones are valid, the user's own are read strictly, --set comes last; every setting is listed."""

from pathlib import Path

import pytest

from tests.errors import rejection
from txlcli.config import recipe
from txlcli.errors import RecipeError, UnknownNameError

TINY = """
[corpus]
store = "tiny"

[model]
n_layers = 2
d_model = 14
n_heads = 3
d_head = 11
d_inner = 17

[train]
seg_len = 5
mem_len = 7
batch_size = 6
max_steps = 11

[eval]
seg_len = 5
mem_len = 7
"""


@pytest.fixture
def tiny(tmp_path):
    """Write a recipe and return its path; `more` is appended, `old` replaced by `new`."""

    def write(more="", old="", new="", name="tiny.toml"):
        path = tmp_path / name
        path.write_text(TINY.replace(old, new) + more, encoding="utf-8")
        return str(path)

    return write


def refusal(path, *overrides):
    return rejection(RecipeError, recipe.load, path, overrides)


@pytest.mark.parametrize("word", ["enwik8", "enwik8.toml", "recipes/enwik8.toml", "recipes/enwik8"])
def test_a_packaged_recipe_is_found_by_name_in_any_directory(tmp_path, monkeypatch, word):
    monkeypatch.chdir(tmp_path)
    assert recipe.load(word) == recipe.load("enwik8")
    assert recipe.read_text(word)[0] == "enwik8"


def test_a_file_takes_precedence_over_a_packaged_recipe_unless_it_is_a_corpus(tmp_path, monkeypatch, tiny):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "enwik8").write_bytes(b"<mediawiki>" * 30_000)
    (tmp_path / "ptb").mkdir()
    tiny(name="wt103.toml")
    assert [recipe.load(name).corpus.store for name in ("enwik8", "ptb", "wt103")] == ["enwik8", "ptb", "wt103"]
    assert recipe.load("wt103.toml").corpus.store == "tiny"
    with pytest.raises(UnknownNameError, match=r'unknown recipe "mine/enwik8.toml"; did you mean "enwik8"\?') as raised:
        recipe.load("mine/enwik8.toml")
    assert (raised.value.kind, raised.value.name) == ("recipe", "mine/enwik8.toml")
    assert "enwik8" in raised.value.known


def test_set_overrides_the_recipe_which_overrides_the_default(tiny):
    path = tiny("\n[log]\nevery = 13\n", "max_steps = 11", "max_steps = 11\nlr = 0.5\nclip = 0.75")
    settings = recipe.load(path, ["train.lr=0.125", "published.valid=3"])
    assert (settings.train.lr, settings.train.clip, settings.train.weight_decay) == (0.125, 0.75, 0.0)
    assert settings.log.every == 13
    assert settings.published.valid == 3.0


@pytest.mark.parametrize(
    ("override", "section", "key", "value"),
    [
        ("train.lr=1e-4", "train", "lr", 1e-4),
        (" train.lr = 0.5 ", "train", "lr", 0.5),
        ("train.max_steps=400_000", "train", "max_steps", 400_000),
        ("model.norm=pre", "model", "norm", "pre"),
        ('model.norm="pre"', "model", "norm", "pre"),
        ("train.clip=none", "train", "clip", None),
        ("train.clip=Off", "train", "clip", None),
        ("eval.same_length=off", "eval", "same_length", "off"),
        ("corpus.store=none", "corpus", "store", "none"),
        ("corpus.store=None", "corpus", "store", "None"),
        ("corpus.store=2024", "corpus", "store", "2024"),
        ('corpus.store="2024"', "corpus", "store", "2024"),
        ("model.variational_dropout=true", "model", "variational_dropout", True),
        ("model.cutoffs=[5, 11]", "model", "cutoffs", (5, 11)),
        ("model.cutoffs=[]", "model", "cutoffs", ()),
        ("model.tie_projections=[false]", "model", "tie_projections", (False,)),
        ("model.tie_projections=none", "model", "tie_projections", None),
    ],
)
def test_set_accepts_numbers_words_booleans_and_none(tiny, override, section, key, value):
    given = getattr(getattr(recipe.load(tiny(), [override]), section), key)
    assert given == value
    assert type(given) is type(value)


@pytest.mark.parametrize(
    ("value", "words"),
    [((True, False), "[true, false]"), ((2000, 5), "[2000, 5]"), ((), "[]"), (None, "-"), (True, "true")],
)
def test_a_value_in_a_table_is_written_as_in_a_recipe(value, words):
    assert recipe.format_value(value) == words


@pytest.mark.parametrize(
    ("changes", "telling"),
    [
        *((change, "section.key=value") for change in ("train.lr", "zebra=0.5", "=0.5", ".lr=0.5", "train.=0.5", "")),
        ("learning_rate=0.5", 'did you mean "train.lr=0.5"?'),
        ("trian.lr=0.5", 'no section "trian"; did you mean "train"?'),
        ("train.lr=0", "with train.lr=0: [train] lr must be greater than 0, not 0.0"),
        ("train.lr=0.5|model.n_head=3", 'with train.lr=0.5, model.n_head=3: [model] has no key "n_head"'),
        ("model.arch=gru", "not 'gru'"),
        ("model.arch=[1]", "not [1]"),
    ],
)
def test_a_wrong_set_is_rejected_with_the_next_step(tiny, changes, telling):
    assert telling in refusal(tiny(), *changes.split("|"))


MODEL, STEPS = "d_inner = 17", "max_steps = 11"
REJECTED_TEXTS = [  # a text of the recipe, what stands there instead, a telling part of the error
    ("n_heads", "n_head", '[model] has no key "n_head"; did you mean "n_heads"?'),
    ("[eval]", "[eval]\nxyzzy = 1", '[eval] has no key "xyzzy" (known: seg_len, mem_len'),
    ("[model]", "[modle]", 'no section "modle"; did you mean "model"?'),
    *(
        (f"{key} =", "dropout = 0.1 #", f'key "{key}"')
        for key in ("n_layers", "d_model", "n_heads", "d_head", "d_inner")
    ),
    (TINY, "", '[corpus] needs the key "store"'),
    ('store = "tiny"', "store = 3", "[corpus] store must be a text, not 3"),
    ("seg_len = 5", 'seg_len = "5"', "[train] seg_len must be a whole number, not '5'"),
    ("seg_len = 5", "seg_len = 5.0", "[train] seg_len must be a whole number, not 5.0; write 5"),
    ("seg_len = 5", "seg_len = 1e3", "[train] seg_len must be a whole number, not 1000.0; write 1000"),
    ("seg_len = 5", "seg_len = inf", "[train] seg_len must be a whole number, not inf"),
    ("seg_len = 5", "seg_len = true", "[train] seg_len must be a whole number, not True"),
    (STEPS, f'{STEPS}\nlr = "fast"', "[train] lr must be a number, not 'fast'"),
    (MODEL, f"{MODEL}\ntie_biases = 1", "[model] tie_biases must be true or false, not 1"),
    (MODEL, f"{MODEL}\nnorm = 1", "[model] norm must be one of post, pre, pre_released, not 1"),
    (MODEL, f'{MODEL}\ndropout = "none"', "[model] dropout must be a number, not 'none'"),
    (MODEL, f'{MODEL}\ncutoffs = ["a"]', "[model] cutoffs must be a list of whole numbers, not ['a']"),
    (MODEL, f"{MODEL}\ncutoffs = 5", "[model] cutoffs must be a list of whole numbers, not 5"),
    (MODEL, f"{MODEL}\ntie_projections = [1, 0]", "tie_projections must be a list of true and false"),
]


@pytest.mark.parametrize(("old", "new", "telling"), REJECTED_TEXTS)
def test_a_wrong_recipe_is_rejected_with_the_next_step(tiny, old, new, telling):
    path = tiny(old=old, new=new)
    message = refusal(path)
    assert message.startswith(f"{path}: ")
    assert telling in message


@pytest.mark.parametrize(
    ("name", "content", "telling"),
    [
        ("mine.toml", b"model: n_layers 3\n", "not a TOML file ("),
        ("mine.toml", b"\xff\xfe\x00", "cannot be read as a text file ("),
        ("mine.toml", b"[train]\nclip = none\n", 'a word is in quotes, as in clip = "none"'),
        ("mine.txt", b"The old house\n", '"txl prepare mine.txt"'),
        ("mine.h5", b"\x89HDF\r\n\x1a\n", 'give a token store by its name, "mine"'),
        ("mine.toml", b"#" * 300_000, "too large for a recipe"),
        ("mine.txt", b"The old house\n" * 30_000, '"txl prepare mine.txt"'),
        ("mine.h5", b"\x89HDF\r\n\x1a\n" * 50_000, 'give a token store by its name, "mine"'),
    ],
)
def test_a_file_that_is_not_a_recipe_is_rejected_with_the_next_step(tmp_path, monkeypatch, name, content, telling):
    monkeypatch.chdir(tmp_path)
    Path(name).write_bytes(content)
    message = refusal(name)
    assert message.startswith(f"{name}: ")
    assert telling in message


def test_a_key_in_place_of_a_section_is_rejected(tmp_path):
    path = tmp_path / "flat.toml"
    path.write_text('model = 3\n[corpus]\nstore = "tiny"\n')
    for overrides in ([], ["model.n_layers=3"]):
        assert "[model] must be a section of keys" in refusal(str(path), *overrides)


def test_a_byte_order_mark_is_ignored(tiny):
    path = Path(tiny())
    expected = recipe.load(str(path))
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert recipe.load(str(path)) == expected


def test_an_error_of_a_recipe_has_its_setting(tiny):
    for override in ("train.lr=0", "model.n_head=3", "trian.lr=1", "model.arch=gru"):
        with pytest.raises(RecipeError) as caught:
            recipe.load(tiny(), [override])
        assert caught.value.setting == ("trian" if "trian" in override else override.partition("=")[0])


@pytest.mark.parametrize("name", recipe.packaged_names())
def test_settings_written_as_a_table_resolve_to_equal_settings(name):
    # One None that is the default of its key, one that is not.
    settings = recipe.load(name, ["eval.max_distance=none", "train.clip=none"])
    table = recipe.to_table(settings)
    assert "max_distance" not in table["eval"]
    assert table["train"]["clip"] == "none"
    assert recipe.resolve(table, where="here") == settings


def test_every_setting_is_described_with_its_values_and_default():
    keys = {key.setting: key for section in recipe.SECTIONS for key in recipe.described_keys(section)}
    assert set(keys) == set(recipe.setting_names())
    assert all(key.description.endswith(".") for key in keys.values())
    assert (keys["train.lr"].values, keys["train.lr"].default) == ("number, greater than 0", "0.00025")
    assert keys["train.clip"].values == "number, greater than 0, or none"
    assert keys["train.seg_len"].default == "required"
    assert (keys["model.norm"].values, keys["model.d_embed"].default) == ("one of post, pre, pre_released", "-")


def test_a_setting_whose_default_depends_on_the_architecture_is_listed_for_each():
    stds = {key.arch: key.default for key in recipe.described_keys("model") if key.setting == "model.init_std"}
    assert stds == {("transformer", "compressive", "rmt"): "0.02", ("lstm", "qrnn"): "0.1"}


def test_a_key_of_thousands_of_parts_is_rejected_at_once():
    text = "# " + "." * 7000 + "\n" + ".".join("a" * 30_000) + " = 1\n"
    with pytest.raises(RecipeError, match="line 2"):
        recipe.resolve_text(text, "deep.toml")
