"""The terminal shows every text as it is: names of files may hold whatever Rich reads as markup."""

import io
import json
import re
import sys
import time

import pytest

from txlcli import console
from txlcli.commands.progress import TerminalReporter

ODD = ["notes[draft].txt", "a[/b].txt", "[red]x[/red]", "lane :key:", "\\[x]"]
HOSTILE = "a\x1b]0;owned\x07\x1b[31mred\r\x9b2J\u202eb\nerror: none\u2028c"
CONTROLS = "\x1b\x07\r\x9b\u202e\u2028"
ESCAPED = r"a\x1b]0;owned\x07\x1b[31mred\r\x9b2J\u202eb\nerror: none\u2028c"


class Terminal(io.StringIO):
    """A terminal that keeps what it was shown."""

    def isatty(self):
        return True


def without_styles(text):
    """Return what a terminal was shown, without its escape sequences."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


SHOWN = [*((text, text) for text in ODD), (HOSTILE, ESCAPED), ("im\udcffage", "im\\udcffage")]


@pytest.mark.parametrize(("text", "shown"), SHOWN)
def test_a_line_is_shown_as_it_is_or_escaped_on_one_line(capsys, text, shown):
    console.say(text)
    console.complain(text)
    console.show_line(text)
    assert capsys.readouterr() == (f"{shown}\n", f"{shown}\nerror: {shown}\n")


@pytest.mark.parametrize(("text", "shown"), SHOWN)
@pytest.mark.parametrize("place", ["title", "heading", "cell", "note"])
def test_every_part_of_a_table_is_shown_as_it_is_or_escaped_on_one_line(capsys, text, shown, place):
    parts = {part: text if part == place else part for part in ("title", "heading", "cell", "note")}
    console.show_table(parts["title"], (parts["heading"], "b"), [(parts["cell"], "2")], [parts["note"]])
    out = capsys.readouterr().out
    assert out.count(shown) == 1
    assert not set(CONTROLS) & set(out)


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("give `mem_len` 3, or `text`; see `out`: it", "give --mem-len 3, or --text; see --out: it"),
        ('unknown run "`seed`" (add `force`)', 'unknown run "`seed`" (add --force)'),
        ("runs/`seed`/run.json and a`seed`b.txt", "runs/`seed`/run.json and a`seed`b.txt"),
    ],
)
def test_options_are_shown_as_flags_and_names_with_backticks_as_they_are(capsys, message, shown):
    console.complain(message)
    assert capsys.readouterr().err == f"error: {shown}\n"


@pytest.mark.parametrize(
    ("total", "unit", "limit_s", "shown"),
    [
        (40e6, "tokens", 14.0, "reading: 50%, 2.0M tokens/s, 0:00:10 elapsed, 0:00:04 left\n"),
        (None, "B", None, "reading: 20.0 MB, 2.0 MB/s\n"),
    ],
)
def test_a_step_without_a_terminal_says_how_far_it_is_and_how_fast(monkeypatch, capsys, total, unit, limit_s, shown):
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with TerminalReporter().progress("reading", total=total, unit=unit, limit_s=limit_s) as step:
        now = 109.0
        step.advance(7e6)  # too early for a line
        now = 110.0
        step.advance(13e6)
    assert capsys.readouterr().err == shown


def test_json_escapes_them_and_keeps_the_value(capsys):
    console.show_json({"name": HOSTILE, "word": "naïve 語", "half": "\ud83d"})
    out = capsys.readouterr().out
    assert not set(CONTROLS) & set(out)
    assert '"word": "naïve 語", "half": "\\ud83d"' in out
    assert json.loads(out) == {"name": HOSTILE, "word": "naïve 語", "half": "\ud83d"}


def test_json_is_ascii_if_stdout_is_not_utf_8(monkeypatch):
    out = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    monkeypatch.setattr(sys, "stdout", out)
    console.show_json({"word": "naïve 語"})
    assert json.loads(out.buffer.getvalue().decode("ascii")) == {"word": "naïve 語"}


def test_json_is_written_to_a_stream_without_an_encoding(monkeypatch):
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    console.show_json({"word": "naïve 語"})
    assert json.loads(out.getvalue()) == {"word": "naïve 語"}


@pytest.mark.parametrize("quiet", [False, True])
def test_a_warning_is_shown_with_quiet_too(capsys, quiet):
    console.set_quiet(quiet)
    TerminalReporter().say("reads `mem_len`")
    TerminalReporter().warn("`plot` failed")
    console.set_quiet(False)
    assert capsys.readouterr().err == ("" if quiet else "reads --mem-len\n") + "--plot failed\n"


@pytest.mark.parametrize(
    ("text", "shown"), [("naïve 🦊 語\t.\n", "naïve 🦊 語\t.\n"), ("a\x1b[2Jb\n", "a\\x1b[2Jb\n"), ("\x00", "\\x00")]
)
def test_generated_text_is_escaped_on_a_terminal_only(monkeypatch, capsys, text, shown):
    console.show_generated(text)
    assert capsys.readouterr().out == text
    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    console.show_generated(text)
    assert terminal.getvalue() == shown
    console.show_generated(text, raw=True)
    assert terminal.getvalue() == shown + text


@pytest.mark.parametrize("kind", ["xterm", "dumb"])
@pytest.mark.parametrize(("columns", "number"), [(60, 4), (80, 6), (200, 9)])
def test_a_table_fits_the_terminal_and_says_which_columns_it_lacks(monkeypatch, kind, columns, number):
    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    monkeypatch.setenv("COLUMNS", f"{columns}")
    monkeypatch.setenv("TERM", kind)
    cells = [f"{number}" * 11 for number in range(1, 10)]
    console.show_table("", [f"column {number}" for number in range(1, 10)], [cells])
    shown, _, lacking = without_styles(terminal.getvalue()).partition("not shown: ")
    assert max(map(len, shown.splitlines())) <= columns
    assert [cell in shown for cell in cells] == [at < number for at in range(9)]
    names = ", ".join(f"column {at + 1}" for at in range(number, 9))
    assert lacking == (f"{names}; widen the terminal to see them\n" if names else "")
