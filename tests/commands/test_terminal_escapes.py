"""Names and notes of stores and runs, vocabularies and servers reach no terminal unescaped."""

from pathlib import Path

from tests.commands.novel import done, txl
from txlcli.data.token_store import SplitInfo, StoreFacts, writing
from txlcli.data.vocabulary import Vocab

ESCAPE = "\x1b[2J\x9b31m"
SHOWN = r"\x1b[2J\x9b31m"
VOCAB = Vocab("word", ["<eos>", f"fox{ESCAPE}"], boundary=0)


def write_store(name):
    """Write a store whose facts and words contain escapes."""
    note = f"note{ESCAPE}\nnext: rm -rf"
    facts = StoreFacts(f"name{ESCAPE}", f"corpus{ESCAPE}", "word", "word", "ppl", {"key": note}, (note,), "0", False)
    with writing(Path("data", f"{name}.h5"), facts, VOCAB) as writer:
        for split in ("train", "valid", "test"):
            counts = SplitInfo(tokens=400, words=1, bytes=1, unknown=0, types=1)
            writer.add(split, counts, [[1, 0] * 200])


def test_facts_of_a_store_are_escaped(here):
    write_store("hostile")
    shown = done("prepare", "--list").stdout
    assert f"name{SHOWN}" in shown
    assert rf"note{SHOWN}\nnext: rm -rf" in shown
    assert not set(ESCAPE[:1] + ESCAPE[4]) & set(shown)


def test_the_name_of_a_run_is_escaped(here):
    Path("runs/word").rename(f"runs/word{ESCAPE}")
    result = txl("runs")
    assert f"word{SHOWN}" in result.stdout
    assert "\x1b" not in result.stdout + result.stderr
