"""The page about music runs as it is printed, on a few chorales, with fewer steps and tokens.

Needs the extra "music"; skipped where it is not installed.
"""

import json
from pathlib import Path

import pytest

from tests.commands.novel import done
from tests.docs.pages import DOCS, blocks, txl_lines

PAGE = DOCS / "music.md"
miditok = pytest.importorskip("miditok", reason='MidiTok is not installed: pip install -e ".[music]"')
pytest.importorskip("music21", reason='music21 is not installed: pip install -e ".[music]"')
pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="no page here")

SHORTER = {"train": ["--max-steps", "9"]}
ALL = 'corpus.chorales.Iterator(returnType="filename")'
FEW = 'corpus.chorales.Iterator(1, 14, returnType="filename")'


def test_the_page_takes_chorales_to_a_model_and_to_a_midi_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for language, caption, code in blocks(PAGE.read_text(encoding="utf-8")):
        if language == "toml":
            Path(caption).write_text(code, encoding="utf-8")
        elif language == "python":
            exec(compile(code.replace(ALL, FEW).replace("bwv96.6", last_chorale()), caption, "exec"), {})
        else:
            for words in txl_lines(code):
                shorter = ["97" if word == "1024" else word for word in words]
                done(*shorter, *SHORTER.get(words[0], []))
    assert "ids: " in capsys.readouterr().out
    seed = json.loads(Path("seed.json").read_text())
    for name in ("ids", "no-memory"):
        pieces = json.loads(Path(f"{name}.json").read_text())["ids"]
        assert [len(piece) for piece in pieces] == [64 + 97] * 8
        assert all(piece[:64] == seed for piece in pieces)
        assert Path(f"{name}.mid").read_bytes()[:4] == b"MThd"
    assert_round_trips()


def last_chorale():
    """Return the name of a chorale, once there are some."""
    names = sorted(path.stem for path in Path("chorales").glob("bwv*.json"))
    return names[-1] if names else ""


def assert_round_trips():
    """Assert that ids, MIDI file and ids again are equal for all chorales."""
    tokenizer = miditok.REMI(params="tokenizer.json")
    paths = sorted(Path("chorales").glob("bwv*.json"))
    assert len(paths) > 9
    for path in paths:
        ids = json.loads(path.read_text())["ids"]
        tokenizer.decode(ids).dump_midi("again.mid")
        assert tokenizer(Path("again.mid")).ids == ids, path
        assert tokenizer.tokens_errors(ids) == 0, path
