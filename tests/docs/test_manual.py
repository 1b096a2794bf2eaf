"""The manual names only commands, options, pages and figures that exist."""

import functools
import itertools
import re
import runpy
import sys
from xml.etree import ElementTree

import pytest
import typer.main

from tests.docs.pages import DOCS, blocks, pages, txl_lines
from txlcli.cli import app
from txlcli.config import recipe
from txlcli.config.recipe import SECTIONS, described_keys

pytestmark = pytest.mark.skipif(not (DOCS / "index.md").exists(), reason="no docs here")

ROOT = typer.main.get_command(app)
PAGES = pages()
LINES = [
    pytest.param(words, id=f"{name}: {' '.join(words)}"[:100])
    for name, text in PAGES.items()
    for language, _, code in blocks(text)
    if language in ("sh", "bash")
    for words in txl_lines(code)
]
SCRIPT = DOCS.parent / "tests" / "gpu" / "__main__.py"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("words", LINES)
def test_every_command_of_the_manual_is_accepted_by_the_option_parser(words):
    if words == ["--version"]:
        return
    command, name = ROOT, "txl"
    while words and words[0] in getattr(command, "commands", {}):
        command, name, words = command.commands[words[0]], f"{name} {words[0]}", words[1:]
    assert command is not ROOT, f"no such command: txl {words[0]}"
    command.make_context(name, list(words))  # parses without running


def changed_recipes():
    """Return the packaged recipes that commands of the manual change, each with the values of --set."""
    found = []
    for (words,) in (line.values for line in LINES):
        is_recipe = words[0] in ("train", "speed") and not set(words[1:2]).isdisjoint(recipe.packaged_names())
        changes = [value for option, value in itertools.pairwise(words) if option == "--set"]
        if is_recipe and changes:
            found.append(pytest.param(words[1], changes, id=" ".join([words[1], *changes])[:100]))
    return found


@pytest.mark.parametrize(("name", "changes"), changed_recipes())
def test_the_changes_of_recipes_in_the_manual_are_accepted(name, changes):
    assert recipe.load(name, changes) != recipe.load(name)


@pytest.mark.parametrize("name", PAGES)
def test_options_in_the_text_exist(name):
    known = set(re.findall(r'"(--[a-z-]+)"', SCRIPT.read_text(encoding="utf-8")))
    for command in _all_commands(ROOT):
        for parameter in command.params:
            known |= {*parameter.opts, *parameter.secondary_opts}
    elsewhere = {
        "--rows",
        "--capability",
        "--repeat",
        "--nproc-per-node",
        "--nnodes",
        "--max-restarts",
        "--gpus-per-node",
        "--help",
        "--signals-to-handle",
    }
    named = {word for text in re.findall(r"`(--[a-z][^`]*)`", PAGES[name]) for word in re.findall(r"--[a-z-]+", text)}
    assert named <= known | elsewhere


def _all_commands(command):
    yield command
    for inner in getattr(command, "commands", {}).values():
        yield from _all_commands(inner)


@pytest.mark.parametrize("name", PAGES)
def test_settings_in_the_text_exist(name):
    sections = "|".join(SECTIONS)
    named = set(re.findall(rf"`(?:--set )?((?:{sections})\.[a-z_]+)(?:`| ?=)", PAGES[name]))
    named |= set(re.findall(rf"--set ((?:{sections})\.[a-z_]+)=", PAGES[name]))
    files = (".bin", ".idx", ".parquet", ".pt", ".py", ".safetensors")
    assert {one for one in named if not one.endswith(files)} <= _known_settings()


@functools.cache
def _known_settings():
    return {key.setting for section in SECTIONS for key in described_keys(section)}


@pytest.mark.parametrize("name", PAGES)
def test_links_and_figures_lead_somewhere(name):
    text = re.sub(r"^```(?!\{figure\}).*?^```", "", PAGES[name], flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?://", target) or ((DOCS / name).parent / target).is_file():
            continue
        page, _, anchor = target.partition("#")
        assert not page or page in PAGES, target
        if anchor:
            assert anchor in _anchors(PAGES[page or name]), target
    for path in re.findall(r"```\{figure\} (\S+)", text):
        assert (DOCS / path).is_file(), path


def _anchors(text):
    """Return the anchors of a page, or those of the settings where it has them generated."""
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return slugs | set(re.findall(r"^\(([\w-]+)\)=$", text, flags=re.MULTILINE)) | _setting_anchors()


@functools.cache
def _setting_anchors():
    return set(re.findall(r"\{#([\w-]+)\}", "\n".join(_extension("settings_page").lines())))


def test_every_page_is_in_the_table_of_contents():
    trees = [tree for text in PAGES.values() for tree in re.findall(r"```\{toctree\}.*?```", text, flags=re.DOTALL)]
    entries = [entry for tree in trees for entry in re.findall(r"^[a-z/-]+$", tree, flags=re.MULTILINE)]
    pages = [name.removesuffix(".md") for name in PAGES if name != "index.md"]
    assert sorted(entries) == sorted([*pages, "notebook"])


def _extension(name):
    sys.path.insert(0, str(DOCS / "_ext"))
    try:
        return __import__(name)
    finally:
        sys.path.remove(str(DOCS / "_ext"))


def test_the_page_of_commands_has_every_command_and_option():
    text = "\n".join(_extension("commands_page").lines())
    for command in _all_commands(ROOT):
        if command is ROOT:
            continue
        for parameter in command.params:
            is_argument = parameter.param_type_name == "argument"
            assert (parameter.metavar if is_argument else parameter.opts[0]) in text
    for name in ROOT.commands:
        assert f"## txl {name}\n" in text


def test_the_page_of_settings_has_every_key():
    text = "\n".join(_extension("settings_page").lines())
    for section in SECTIONS:
        for key in described_keys(section):
            assert f"`{key.setting}`" in text


def test_the_figures_are_those_that_the_script_draws(tmp_path):
    runpy.run_path(str(DOCS / "figures" / "make_figures.py"))["main"](tmp_path)
    names = sorted(path.name for path in (DOCS / "figures").glob("*.svg"))
    assert names == sorted(path.name for path in tmp_path.iterdir())
    for name in names:
        assert _structure(tmp_path / name) == _structure(DOCS / "figures" / name)


def _structure(path):
    """Return the texts of a figure and the number of its elements of each kind."""
    root = ElementTree.parse(path).getroot()
    texts = [element.text for element in root.iter(f"{SVG}text")]
    return texts, {tag: len(list(root.iter(f"{SVG}{tag}"))) for tag in ("path", "use", "g")}
