"""The files of a release agree with the package: citation, container, conda recipe, llms.txt."""

import re
import tomllib
from pathlib import Path

from tests.docs.pages import pages
from txlcli import __version__

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CONDA_NAMES = {"torch": "pytorch", "xxhash": "python-xxhash", "matplotlib": "matplotlib-base"}


def requirement(text):
    """Return the name and the versions of a dependency."""
    name, versions = re.fullmatch(r"([\w-]+) ?(.*)", text).groups()
    return name, versions


def test_the_citation_has_the_version_of_the_package():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (.*)$", citation, flags=re.MULTILINE) == [__version__]


def test_the_conda_recipe_has_the_version_and_the_dependencies_of_the_package():
    recipe = (ROOT / ".ci/conda/recipe.yaml").read_text(encoding="utf-8")
    assert f'version: "{__version__}"' in recipe
    run = recipe.split("  run:\n")[1].split("\n\n")[0]
    needed = {CONDA_NAMES.get(name, name): versions for name, versions in map(requirement, PROJECT["dependencies"])}
    needed["python"] = PROJECT["requires-python"]
    assert dict(requirement(line.removeprefix("    - ")) for line in run.splitlines()) == needed
    (script,) = PROJECT["scripts"].items()
    assert " = ".join(script) in recipe


def test_the_container_installs_a_pytorch_that_the_package_accepts():
    (torch,) = (dependency for dependency in PROJECT["dependencies"] if dependency.startswith("torch>"))
    installed = re.findall(r'pip install --no-cache-dir "(.*?)"', (ROOT / ".ci/Dockerfile").read_text(encoding="utf-8"))
    assert installed == [torch, torch]


def test_llms_txt_lists_every_page_of_the_manual_with_its_title():
    listed = re.findall(
        r"^- \[(.*?)\]\((.*?)\.html\): ", (ROOT / "docs/llms.txt").read_text(encoding="utf-8"), re.MULTILINE
    )
    titles = {name: re.match("# (.*)", text)[1] for name, text in pages().items() if "/" not in name}
    assert {f"{name}.md": title for title, name in listed} == titles
    assert len(listed) == len(titles)
