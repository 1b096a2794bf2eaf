"""`txl recipes`: list, show and forecast the packaged recipes."""

import re
import textwrap
from typing import Annotated, Any

import typer
from typer import Argument

from txlcli import console
from txlcli.commands.options import Json, argument, check_options_last, with_options
from txlcli.commands.progress import TerminalReporter
from txlcli.config import recipe
from txlcli.errors import UnknownNameError
from txlcli.paper import metrics
from txlcli.suggestions import meant_setting
from txlcli.workflows.training.options import ScaleOptions
from txlcli.workflows.workspace import StoresDir, Workspace

COLUMNS = ("recipe", "store", "parameters", "metric", "valid", "test", "table")
NOTE = "valid, test: published; table: in the paper. See txl recipes show NAME"

Name = Annotated[str, argument("NAME", "Name of a packaged recipe.", "recipes")]

app = typer.Typer(invoke_without_command=True, add_completion=False, suggest_commands=False, rich_markup_mode=None)


@app.callback()
@with_options
def recipes(context: typer.Context, json: Json = False) -> None:
    """List, show or forecast the packaged recipes.

    Without a command, txl lists them with the paper's tables and results.

    Example: txl recipes
    """
    if context.invoked_subcommand is not None:
        check_options_last(context)
        return
    entries = [_entry(name) for name in recipe.packaged_names()]
    if json:
        console.show_json({"recipes": entries})
    else:
        console.show_table("packaged recipes", COLUMNS, [_cells(entry) for entry in entries], [NOTE])


@app.command("show")
def show(recipe_name: Name, json: Json = False) -> None:
    """Print a packaged recipe; --json adds all defaults.

    For a recipe of your own, write it to a file and edit that.

    Example: txl recipes show enwik8 > mine.toml
    """
    name, text = recipe.packaged(recipe_name)
    if json:
        console.show_json(recipe.to_table(recipe.resolve_text(text, name)))
    else:
        console.show_text(text)


@app.command("keys")
def keys(
    section: Annotated[
        str | None,
        Argument(metavar="SECTION|KEY", help="A section, such as train, or one setting, such as train.lr."),
    ] = None,
    json: Json = False,
) -> None:
    """List every setting with its default, its range and its meaning.

    Example: txl recipes keys train
    """
    described = _find_keys(section)
    if json:
        console.show_json({"settings": described})
        return
    for key in described:
        default = key.default
        if default != recipe.REQUIRED:
            default = f"default {default}"
        facts = [key.values, default]
        if key.arch:
            facts.append(f"arch = {', '.join(key.arch)}")
        text = textwrap.fill(key.description, width=80, initial_indent="  ", subsequent_indent="  ")
        console.show_text(f"{key.setting} ({'; '.join(facts)})\n{text}\n\n")


@app.command("scale")
def scale(
    options: ScaleOptions,
    recipe_source: Annotated[
        str,
        argument("NAME", "A packaged recipe or a recipe file.", "recipes"),
    ],
    *,
    where: StoresDir,
    json: Json = False,
) -> None:
    """Forecast memory and time of a recipe on 1 to 512 GPUs.

    The table has powers of two, up to one sequence of the batch per GPU.

    Example: txl recipes scale wt103 --device-memory 80GiB --set train.precision=bf16
    """
    from txlcli.commands import training_tables
    from txlcli.workflows.training import scaling

    workspace = Workspace(data_dir=where.data_dir, reporter=TerminalReporter())
    forecast = scaling.run(recipe_source, options, workspace)
    console.show_result(forecast, training_tables.show_devices, json=json)


def _find_keys(word: str | None) -> list[recipe.Key]:
    """Return the settings of a section, one setting as section.key, or all settings."""
    matching = []
    for section in recipe.SECTIONS:
        for key in recipe.described_keys(section):
            if word in (None, section, key.setting):
                matching.append(key)
    if not matching:
        known = [*recipe.SECTIONS, *recipe.setting_names()]
        like = meant_setting("", str(word), known)
        listing = '"txl recipes keys" lists all'
        raise UnknownNameError("section or setting", str(word), known, like=like, listing=listing)
    return matching


def _entry(name: str) -> dict[str, Any]:
    """Return the JSON object of a packaged recipe.

    Its description is the first sentence of the header up to a colon or semicolon, which the paper's numbers follow.
    """
    from txlcli import corpora

    _, text = recipe.packaged(name)
    settings = recipe.resolve_text(text, name)
    store = settings.corpus.store
    published = settings.published
    paragraph, _, _ = text.partition("\n#\n")
    header = " ".join(line.removeprefix("#").strip() for line in paragraph.splitlines())
    return {
        "name": name,
        "store": store,
        "parameters": published.parameters,
        "vocab_size": published.vocab_size,
        "metric": metrics.metric_of(corpora.CORPORA[store].unit),
        "paper_valid": published.valid,
        "paper_test": published.test,
        "description": re.split(r"[:;]|(?<!et al)\.(?:\s|$)", header)[0],
    }


def _cells(entry: dict[str, Any]) -> list[str]:
    """Return the row of a recipe in the list."""
    table = re.match(r"Table (\d+)", entry["description"])
    return [
        entry["name"],
        entry["store"],
        console.cell(entry["parameters"], ","),
        entry["metric"],
        str(entry["paper_valid"] or "-"),
        str(entry["paper_test"] or "-"),
        table[1] if table else "-",
    ]
