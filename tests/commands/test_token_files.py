"""txl prepare and txl export with token files: ids of other systems become stores, and stores become their files."""

import json
import pickle
import struct

import numpy as np
import pytest
from filelock import FileLock

import txlcli as txl
from tests.commands.novel import STORES, TOKENIZERS, card, cells, digests, done, json_of, refusal, store, train
from tests.commands.novel import txl as txl_command
from tests.docs.pages import DOCS, blocks, pages
from tests.samples import sampled
from txlcli.data.vocabulary import Vocab
from txlcli.errors import ExportError
from txlcli.workflows.exchange import token_files


def write_ids(path, ids, code="H"):
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(struct.pack(f"<{len(ids)}{code}", *ids))


def sample(count, vocab_size=17, seed=3):
    """Return ids that contain the largest one."""
    ids = np.random.default_rng(seed).integers(vocab_size, size=count)
    ids[1] = vocab_size - 1
    return ids.tolist()


@pytest.fixture
def ids_of_nanogpt(untouched):
    """Make a folder as nanoGPT's prepare.py writes it."""
    write_ids(untouched / "shakespeare/train.bin", sample(997))
    write_ids(untouched / "shakespeare/val.bin", sample(101))
    (untouched / "shakespeare/meta.pkl").write_bytes(pickle.dumps({"vocab_size": 17}))
    (untouched / "shakespeare/input.txt").write_text("the text")
    return untouched


# --- round trips -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tokenizer", "form"), sampled(2, TOKENIZERS, ["nanogpt", "llm.c", "megatron"]))
def test_an_exported_store_is_prepared_again_with_the_same_digests(here, tokenizer, form):
    name = STORES[tokenizer]
    told = json_of("export", name, "files", "--format", form)
    assert told["sha256"] == digests(name)
    json_of("prepare", "files", "--name", "again")
    assert digests("again") == digests(name)
    first, again = store(name), store("again")
    assert again.fingerprint == first.fingerprint
    assert (again.tokenizer, again.unit, again.metric) == (first.tokenizer, first.unit, first.metric)
    for split in first.splits:
        assert again.info(split).types == first.info(split).types
        assert again.info(split).unknown == first.info(split).unknown


@pytest.mark.parametrize(("line", "names"), [("a\n", ["train"]), ("b a\n", ["valid", "test"]), ("\n", ["train"])])
def test_an_export_of_any_text_and_any_splits_is_read_again(untouched, line, names):
    (untouched / "odd").mkdir()
    for name in names:
        (untouched / f"odd/{name}.txt").write_text("a b\n" + line * 99)
    done("prepare", "odd", "--tokenizer", "word")
    done("export", "odd", "files", "--format", "nanogpt")
    done("prepare", "files", "--name", "again")
    assert digests("again") == digests("odd")
    assert store("again").fingerprint == store("odd").fingerprint


@pytest.mark.parametrize("form", ["nanogpt", "llm.c", "megatron"])
def test_ids_without_a_vocabulary_keep_their_digests(here, form):
    done("export", "word", "files", "--format", form)
    (here / "files/vocab.json").unlink()
    done("prepare", "files", "--name", "again", "--vocab-size", store("word").vocab.size)
    assert digests("again") == digests("word")
    assert store("again").tokenizer == "ids"
    done("export", "again", "twice", "--format", form)
    assert (here / "twice/train.bin").read_bytes() == (here / "files/train.bin").read_bytes()


@pytest.mark.parametrize("form", ["nanogpt", "llm.c", "megatron"])
def test_a_large_vocabulary_has_wider_ids(untouched, form):
    write_ids(untouched / "large/train.bin", sample(97, 70_001), "I")
    write_ids(untouched / "large/test.bin", sample(89, 70_001), "I")
    done("prepare", "large", "--dtype", "uint32")
    told = json_of("export", "large", "files", "--format", form)
    assert told["dtype"] == ("int32" if form == "megatron" else "uint32")
    assert [note.split(":")[0] for note in told["notes"]] == ["V = 70,001 needs uint32"] * (form == "nanogpt")
    done("prepare", "files", "--name", "again")  # the vocabulary next to the files tells their type
    assert digests("again") == digests("large")


def test_sentences_become_documents_of_megatron(here):
    (here / "news").mkdir()
    (here / "news/1b_word_vocab.txt").write_text("<S>\n<UNK>\nthe\nfox\n")
    for name in ("news.en-00001-of-00100", "news.en.heldout-00000-of-00050"):
        (here / "news" / name).write_text("the fox\nfox\nthe the fox\n")
    done("prepare", "lm1b", "--source", "news")
    done("export", "lm1b", "files", "--format", "megatron")
    assert np.fromfile("files/test.idx", "<i4", 3, offset=34).tolist() == [3, 2, 4]
    done("prepare", "files", "--name", "again")
    assert digests("again") == digests("lm1b")
    assert store("again").sentence_starts("test").tolist() == [0, 3, 5]


def test_documents_of_megatron_are_those_of_the_store_and_are_not_cut(untouched):
    lengths = [3, 100, 2, 40, 60, 5]
    write_ids(untouched / "all.bin", sample(sum(lengths)))
    starts = np.cumsum([0, *lengths[:-1]])
    token_files.write("megatron", untouched / "all.bin", np.array(sample(sum(lengths))), 17, starts)
    told = json_of("prepare", "all.idx", "--split", "60,30,10")
    assert {split: info["documents"] for split, info in told["splits"].items()} == {"train": 4, "valid": 1, "test": 1}
    assert store("all").sentence_starts("train").tolist() == [0, 3, 103, 105]
    assert told["conventions"]["documents"] == "as in the index"
    assert told["conventions"]["split"] == "60/30/10 by position, cut between documents"
    assert (told["splits"]["train"]["words"], told["splits"]["train"]["bytes"]) == (None, None)


# --- preparing -------------------------------------------------------------------------------------------------------


def test_the_directory_of_nanogpt_becomes_a_store_without_text(ids_of_nanogpt):
    told = json_of("prepare", "shakespeare")
    assert (told["tokenizer"], told["unit"], told["metric"], told["vocabulary_size"]) == ("ids", "id", "ppl", 17)
    assert {split: info["tokens"] for split, info in told["splits"].items()} == {"train": 997, "valid": 101}
    assert store("shakespeare").ids("train").tolist() == sample(997)
    assert any("meta.pkl is not read" in note for note in told["notes"])
    assert told["splits"]["train"]["begins"].startswith(" ".join(map(str, sample(997)[:9])))
    line = next(row for row in cells(done("prepare", "shakespeare", "--force")) if row[0] == "train")
    assert line[1:5] == ["997", "17", "-", "-"]  # words and bytes are not known


def test_files_that_are_not_read_are_counted_whatever_their_names(here):
    done("export", "novel", "files", "--format", "megatron")
    assert json_of("prepare", "files", "--name", "again")["changes"] == {}
    (here / "files/train.txt").write_text("the fox\n")
    (here / "files/notes.md").write_text("the owl\n")
    assert json_of("prepare", "files", "--name", "again", "--force")["changes"] == {"files_skipped": 2}


def ids_by_split(name):
    own = store(name)
    return {split: own.ids(split).tolist() for split in own.splits}


def test_a_single_file_is_cut_by_its_ids(untouched):
    ids = sample(1000)
    write_ids(untouched / "all.bin", ids)
    done("prepare", "all.bin")
    assert ids_by_split("all") == {"train": ids[:900], "valid": ids[900:950], "test": ids[950:]}
    done("prepare", "all.bin", "--split", "80,20,0", "--force")
    assert ids_by_split("all") == {"train": ids[:800], "valid": ids[800:]}
    assert store("all").conventions["split"] == "80/20/0 by position"
    np.save("long.npy", ids)
    done("prepare", "long.npy", "--ids", "--split", "80,10,10")
    assert ids_by_split("long") == {"train": ids[:800], "valid": ids[800:900], "test": ids[900:]}
    assert store("long").sentence_starts("train") is None
    write_ids(untouched / "all.bin", [1, 2, 3])
    assert "too few ids to split" in refusal("prepare", "all.bin", "--force", code=1)


def test_files_without_splits_are_cut_together_and_a_doubtful_type_is_noted(untouched):
    ids = sample(1000)
    for number, part in enumerate((ids[:300], ids[300:600], ids[600:])):
        write_ids(untouched / f"chunks/chunk_{number}.bin", part, "q")
    done("prepare", "chunks", "--dtype", "int64")
    assert ids_by_split("chunks") == {"train": ids[:900], "valid": ids[900:950], "test": ids[950:]}
    write_ids(untouched / "odd.bin", [(number * 7919) % 200_000 for number in range(1000)], "I")
    told = json_of("prepare", "odd.bin", "--dtype", "uint16")
    assert "do not look like it" in told["notes"][1]
    told = json_of("prepare", "odd.bin", "--dtype", "uint16", "--vocab-size", 200_000, "--force")
    assert "`dtype` uint32" in told["notes"][1]
    again = ("prepare", "odd.bin", "--dtype", "uint32-be", "--force")
    assert "--vocab-size" in refusal(*again, code=1)
    assert "--dtype uint32" in refusal(*again, "--vocab-size", 200_000, code=1)


def test_a_vocabulary_gives_ids_a_text(ids_of_nanogpt):
    vocab = Vocab("char", list("abcdefghijklmnop\n"))
    (ids_of_nanogpt / "letters.json").write_text(vocab.to_json())
    told = json_of("prepare", "shakespeare", "--vocab", "letters.json")
    assert told["store"] == f"data/shakespeare-vocab-{vocab.fingerprint[:8]}.h5"
    assert told["metric"] == "bpc"
    assert store(f"shakespeare-vocab-{vocab.fingerprint[:8]}").ids("train").tolist() == sample(997)


@pytest.mark.parametrize(
    ("ids", "index"),
    [
        # The format of fairseq: type, number of sequences, their lengths, and their offsets in bytes.
        ([4, 3, 2, 5, 2], b"MMIDIDX\0\0" + struct.pack("<QBQ2i2q", 1, 8, 2, 3, 2, 0, 6)),
        # The older one, whose writer adds one to each id: first sizes, first ids, and sizes of the sequences.
        ([5, 4, 3, 6, 3], b"TNTIDX\0\0" + struct.pack("<5Q8q", 1, 8, 2, 2, 2, 0, 1, 2, 0, 3, 5, 3, 2)),
    ],
)
@pytest.mark.parametrize("words", ["the 2\nfox 1\n\u3000 1\n", "<s>\n<pad>\n</s>\n<unk>\nthe\nfox\n"])
def test_a_list_of_words_of_fairseq_lacks_its_first_four_symbols(untouched, ids, index, words):
    write_ids(untouched / "fs/train.bin", ids)
    (untouched / "fs/train.idx").write_bytes(index)
    (untouched / "dict.txt").write_text(words)
    done("prepare", "fs", "--vocab", "dict.txt", "--name", "fs")
    prepared = store("fs")
    assert prepared.vocab.decode(prepared.ids("train")) == "the <unk>\nfox\n"
    assert prepared.info("train").unknown == 1


@pytest.mark.skipif(not (DOCS / "tokens.md").exists(), reason="no docs here")
def test_the_manual_s_conversion_of_a_pickle_gives_ids_a_text(untouched):
    text = "to be, or not to be\n" * 30
    itos = dict(enumerate(sorted(set(text))))
    stoi = {symbol: number for number, symbol in itos.items()}
    write_ids(untouched / "shakespeare_char/train.bin", [stoi[symbol] for symbol in text])
    meta = {"vocab_size": len(itos), "itos": itos, "stoi": stoi}
    (untouched / "shakespeare_char/meta.pkl").write_bytes(pickle.dumps(meta))
    (code,) = [code for language, _, code in blocks(pages()["tokens.md"]) if language == "python"]
    exec(code, {})
    told = json_of("prepare", "shakespeare_char")
    assert (told["tokenizer"], told["metric"]) == ("char", "bpc")
    assert told["splits"]["train"]["begins"].startswith("to be, or not to be to be")


# --- pieces ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def pieces(untouched):
    """Make a folder of pieces, with names for the ids below 17."""
    (untouched / "music").mkdir()
    for number in range(20):
        np.save(untouched / f"music/{number:02}.npy", sample(30 + number, seed=number))
    (untouched / "music/vocab.json").write_text(json.dumps({f"Pitch_{number}": number for number in range(17)}))
    return untouched


def test_pieces_are_documents_and_their_ids_keep_their_names(pieces):
    told = json_of("prepare", "music", "--ids")
    assert (told["vocabulary_size"], told["tokenizer"]) == (17, "ids")
    assert not any("next to the ids" in note for note in told["notes"])
    assert {split: info["documents"] for split, info in told["splits"].items()} == {"train": 18, "valid": 1, "test": 1}
    assert store("music").ids("train")[30:61].tolist() == sample(31, seed=1)
    assert store("music").sentence_starts("train")[:3].tolist() == [0, 30, 61]
    names = " ".join(f"Pitch_{number}" for number in sample(30, seed=0)[:6])
    assert told["splits"]["train"]["begins"].startswith(names)
    done("export", "music", "files", "--format", "megatron")
    json_of("prepare", "files", "--name", "again")
    assert store("again").fingerprint == store("music").fingerprint
    assert digests("again") == digests("music")


def test_names_that_are_left_out_next_to_the_ids_are_told(untouched):
    ids = sample(40, seed=1)
    np.savez(untouched / "set.npz", input_ids=[ids] * 20, attention_mask=np.ones((20, 40), int))
    told = json_of("prepare", "set.npz", "--ids")
    assert any("not read next to the ids: attention_mask" in note for note in told["notes"])


def test_a_run_continues_ids(pieces):
    done("prepare", "music", "--ids")
    train("corpus.store=music", name="ids")
    (pieces / "seed.json").write_text('{"ids": [3, 1, 2]}')
    seeded = ("generate", "ids", "--prompt-ids", "seed.json", "--tokens", 7)
    assert done(*seeded, "--out", "ids.json").stdout == "ids.json\n"
    written = json.loads((pieces / "ids.json").read_text())
    assert (written["ids"][:3], len(written["ids"]), written["context_tokens"]) == ([3, 1, 2], 10, 3)
    assert done(*seeded).stdout.split() == [f"Pitch_{number}" for number in written["ids"][3:]]
    run = txl.load("runs/ids")
    for seed in ([3, 1, 2], np.array([3, 1, 2])):
        assert run.generate_ids(seed, tokens=7) == written["ids"][3:]
    told = json_of(*seeded, "--out", "ids.json", "--force", "--samples", 2)
    written = json.loads((pieces / "ids.json").read_text())["ids"]
    assert written == [[3, 1, 2, *told["samples"][number]["tokens"]] for number in range(2)]
    assert done("generate", "ids", "--tokens", 5, "--out", "more.json").stdout == "more.json\n"
    assert "no file" in refusal("generate", "ids", "--prompt-ids", "none.json")
    for content, word in {"[3, 17]": "0 to 16", "[]": "0 pieces", "[[1], [2]]": "2 pieces", "{}": '"ids"'}.items():
        (pieces / "seed.json").write_text(content)
        result = txl_command(*seeded)
        assert result.exit_code != 0
        assert word in result.stderr
    for others in (
        ["--prompt", "a"],
        ["--at", 3],
        ["--reference"],
        ["--out", "a.json", "--stop", "a"],
        ["--force"],
        ["--out", "a.json", "--raw"],
    ):
        assert "leave" in refusal("generate", "--prompt-ids", "seed.json", *others)


def test_a_folder_without_pieces_and_names_that_are_not_one_text_for_each_id_are_refused(pieces):
    for names in ("{}", '{"a": 0, "b": 0}', '{"a": "b"}', '["a", 3]', "3"):
        (pieces / "names.json").write_text(names)
        assert "names.json" in refusal("prepare", "music", "--ids", "--vocab", "names.json", code=1)
    (pieces / "music/vocab.json").write_text('{"model": {"vocab": {"a": 0}}}')
    assert "vocab.json: an id is not a number" in refusal("prepare", "music", "--ids", code=1)
    (pieces / "music/vocab.json").write_text('[{"Pitch_60": 0}, {"Velocity_80": 0}]')
    assert "tokens of several ids are not supported" in refusal("prepare", "music", "--ids", code=1)
    done("prepare", "music", "--ids", "--vocab-size", 17)
    assert "no token ids" in refusal("prepare", "novel", "--ids", code=1)
    assert "--ids has no effect" in refusal("prepare", "ptb", "--ids")
    assert "leave out --tokenizer" in refusal("prepare", "novel", "--ids", "--tokenizer", "word")
    (pieces / "one.npy").write_bytes(b"\x93NUMPY")
    assert "--ids" in refusal("prepare", "one.npy", code=1)


# --- wrong requests --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "size", "limit"), [(16, ["--vocab-size", 16], "16"), (-1, [], "1,048,576"), (1 << 20, [], "1,048,576")]
)
def test_ids_that_the_vocabulary_does_not_have_are_named(untouched, wrong, size, limit):
    write_ids(untouched / "all.bin", [3, wrong, 4], "i")
    header = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 4, 1, 2) + struct.pack("<iqqq", 3, 0, 0, 1)
    (untouched / "all.idx").write_bytes(header)
    message = refusal("prepare", "all.idx", "--split", "100,0,0", *size, code=1)
    assert f"the id {wrong:,}, but the vocabulary has {limit} ids" in message
    assert not list((untouched / "data").glob("all*"))


def test_options_that_the_files_decide_are_rejected(ids_of_nanogpt):
    assert "at most 1048576" in refusal("prepare", "shakespeare", "--vocab-size", 1 << 21)
    assert "--workers has no effect" in refusal("prepare", "shakespeare", "--workers", 2)
    assert "--dtype has no effect" in refusal("prepare", "novel", "--dtype", "uint16")
    (ids_of_nanogpt / "shakespeare/vocab.json").write_text('{"the": 0}')  # of another system: not read
    told = json_of("prepare", "shakespeare")
    assert told["tokenizer"] == "ids"
    assert any("vocab.json is not read" in note for note in told["notes"])
    for damaged in (Vocab.of_ids(17).to_json()[:-5], '{"kind": "word"}'):
        (ids_of_nanogpt / "shakespeare/vocab.json").write_text(damaged)
        assert "vocab.json: damaged" in refusal("prepare", "shakespeare", "--force", code=1)
        told = json_of("prepare", "shakespeare", "--force", "--vocab-size", 17)
        assert not any("vocab.json is not read" in note for note in told["notes"])


def test_ids_are_trained_on_and_evaluated_but_commands_that_need_text_reject_them(ids_of_nanogpt):
    (ids_of_nanogpt / "ids.json").write_text(Vocab.of_ids(17).to_json())
    assert "no symbols" in refusal("prepare", "novel", "--vocab", "ids.json")
    done("prepare", "shakespeare")
    train("corpus.store=shakespeare", name="ids")
    (row,) = json_of("eval", "ids", "--split", "valid")["rows"]
    assert (row["tokens"], card("runs/ids")["vocab_size"]) == (100, 17)
    (ids_of_nanogpt / "text.txt").write_text("the fox")
    for command in (
        "compress ids text.txt text.txl",
        "generate ids --stop fox",
        "generate ids --prompt fox",
        "eval ids --text text.txt",
    ):
        assert "whose text is not known" in refusal(*command.split(), code=1)
    assert not (ids_of_nanogpt / "text.txl").exists()
    assert "give --prompt-ids" in refusal("generate", "ids", "--prompt", "1 2 3", code=1)
    assert "whose text is not known" in refusal("generate", "ids", "--interactive", stdin="1 2 3\n", code=1)


def test_the_kind_of_export_must_suit_what_is_exported(here):
    assert "char is a token store" in refusal("export", "char", "files", "--runs-dir", "none")
    assert "no token store" in refusal("export", "nothing", "files", "--format", "nanogpt", code=1)
    assert "byte is a run" in refusal("export", "byte", "files", "--format", "nanogpt", "--data-dir", "none")
    assert not (here / "files").exists()


def test_a_directory_is_filled_by_one_export_at_a_time(here):
    export = ["export", "word", "new/files", "--format", "megatron"]
    (here / "new").mkdir()
    with FileLock("new/.files.lock"):
        assert "another process" in refusal(*export, code=1)
        assert not (here / "new/files").exists()
    done(*export)
    assert [path.name for path in (here / "new").iterdir()] == ["files"]


def test_a_store_with_more_ids_than_llm_c_can_state_is_rejected(tmp_path):
    many = np.broadcast_to(np.uint8(0), (token_files.MAX_LLM_C_IDS + 1,))
    with pytest.raises(ExportError, match="2,147,483,648 ids"):
        token_files.write("llm.c", tmp_path / "train.bin", many, 7)
    assert not list(tmp_path.iterdir())


def test_folders_of_pieces_are_splits_and_a_list_may_name_the_ids(untouched):
    for split in ("train", "valid"):
        (untouched / "music" / split).mkdir(parents=True)
        (untouched / "music" / split / "one.json").write_text('{"ids": [[0, 1, 1], [2, 0]]}')
    (untouched / "names.json").write_text('["Bar", "Rest", "Pitch"]')
    told = json_of("prepare", "music", "--ids", "--vocab", "names.json", "--name", "music")
    assert [(info["tokens"], info["documents"]) for info in told["splits"].values()] == [(5, 2), (5, 2)]
    assert told["conventions"]["split"] == "the folder's own files"
    assert told["splits"]["valid"]["begins"] == "Bar Rest Rest Pitch Bar"
