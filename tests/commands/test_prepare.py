import gzip
import hashlib
import io
import re
import urllib.parse
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as arrow
import pytest
from filelock import FileLock
from pyarrow import parquet

from tests.commands.novel import done, json_of, names_in, refusal, store
from tests.corpora.server import serving
from tests.corpora.test_unpack import PACKERS
from tests.errors import rejection
from tests.samples import sampled
from txlcli import __version__, corpora
from txlcli.corpora.corpus import SPLITS, Download
from txlcli.errors import BusyError, CorpusInputError
from txlcli.workflows.preparation.options import PrepareOptions
from txlcli.workflows.preparation.planning import make_plan
from txlcli.workflows.preparation.preparing import run, run_plan

LINES = [
    f"the {animal} {verb} over N lazy dogs\n" for animal in ("fox", "Cat", "owl") for verb in ("jumps", "flies")
] * 30
BOOK = "".join(LINES)


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    """Make an empty folder the current one."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def book(tmp_path) -> Path:
    path = tmp_path / "my book.txt"
    path.write_text(BOOK)
    return path


def ptb_directory(tmp_path) -> Path:
    texts = {"train": b" a N b \n b a \n", "valid": b" c a \n", "test": b" N d a\n"}
    return written(tmp_path / "ptb-source", {f"ptb.{split}.txt": text for split, text in texts.items()})


def test_ptb_follows_the_convention_of_the_benchmark(tmp_path):
    result = done("prepare", "ptb", "--source", ptb_directory(tmp_path))
    assert result.stderr.startswith("preparing Penn Treebank")
    ptb = store("ptb")
    assert ptb.vocab.symbols == ["<eos>", "a", "n", "b", "c", "d"]
    assert ptb.ids("train").tolist() == [1, 2, 3, 0, 3, 1, 0]
    assert ptb.ids("test").tolist() == [2, 5, 1, 0]
    assert (ptb.info("train").words, ptb.info("train").bytes) == (7, 14)
    assert (ptb.unit, ptb.metric, ptb.every_byte_scored) == ("word", "ppl", False)
    assert "note: not the full benchmark" in result.stdout


def test_blank_lines_and_an_unterminated_last_line_end_in_eos(tmp_path):
    for split in ("train", "valid", "test"):
        (tmp_path / f"wiki.{split}.tokens").write_text(" \n A a\u00a0b \r\n\r\n <unk>")
    done("prepare", "wt103", "--source", tmp_path)
    wt103 = store("wt103")
    assert wt103.vocab.symbols == ["<eos>", "A", "a", "b", "<unk>"]
    assert wt103.ids("valid").tolist() == [0, 1, 2, 3, 0, 0, 4, 0]
    assert (wt103.info("valid").words, wt103.info("valid").unknown) == (8, 0)


def test_enwik8_keeps_newlines_unless_the_released_convention_is_chosen(tmp_path):
    data = b"abcdefghi\t" * 4 + b"\n" * 20 + b"x\n" * 20
    (tmp_path / "enwik8").write_bytes(data)
    done("prepare", "enwik8", "--source", tmp_path / "enwik8")
    kept = store("enwik8")
    assert kept.vocab.decode(kept.ids("train")).encode() == data[:90]
    assert ord(kept.vocab.symbols[0]) == 10
    assert kept.every_byte_scored
    prepared = done("prepare", "enwik8", "--source", tmp_path / "enwik8", "--released-convention")
    assert prepared.stdout.splitlines()[-1] == "next: txl train enwik8 --set corpus.store=enwik8-released"
    released = store("enwik8-released")
    assert released.vocab.decode(released.ids("train")).encode() == data[:90].replace(b"\n", b"")
    assert released.info("train").tokens == 55
    assert released.vocab.size == kept.vocab.size - 1
    assert not released.every_byte_scored
    assert "newlines" in released.conventions


def lm1b_directory(tmp_path) -> Path:
    files = {
        "1b_word_vocab.txt": "</S> 9\n<S> 9\n<UNK> 5\nThe 4\ncat 3\ncat\u00a0 2\n. 1\n".encode(),
        "news.en-00001-of-00100": b"The cat .\nThe dog\n",
        "news.en.heldout-00001-of-00050": b". .\n",
        "news.en.heldout-00000-of-00050": b"cat The\n",
    }
    return written(tmp_path / "lm1b-source", files)


def test_lm1b_keeps_its_vocabulary_and_sentence_starts_and_released_validates_on_test(tmp_path):
    plain = "--set 'model.cutoffs=[]' --set model.tie_projections=none"  # V is small
    told = done("prepare", "lm1b", "--source", lm1b_directory(tmp_path)).stdout
    assert told.splitlines()[-1] == f"next: txl train lm1b {plain}"
    lm1b = store("lm1b")
    assert lm1b.vocab.symbols == ["</S>", "<S>", "<UNK>", "The", "cat", "."]
    assert lm1b.ids("train").tolist() == [3, 4, 5, 1, 3, 2, 1]
    assert lm1b.sentence_starts("train").tolist() == [0, 4]
    assert lm1b.info("train").unknown == 1
    assert lm1b.vocab.boundary == 1
    assert lm1b.vocab.decode(lm1b.ids("valid")) == ". .\n"
    told = done("prepare", "lm1b", "--source", tmp_path / "lm1b-source", "--released-convention").stdout
    assert told.splitlines()[-1] == f"next: txl train lm1b --set corpus.store=lm1b-released {plain}"
    released = store("lm1b-released")
    assert released.ids("valid").tolist() == released.ids("test").tolist() == [4, 3, 1]


def test_lm1b_needs_its_own_vocabulary_file_or_builds_a_vocabulary_and_notes_it(tmp_path):
    directory = lm1b_directory(tmp_path)
    (directory / "1b_word_vocab.txt").write_text("a 1\n")
    assert "lacks <S> and <UNK>" in refusal("prepare", "lm1b", "--source", directory, code=1)
    (directory / "1b_word_vocab.txt").unlink()
    assert "note: no 1b_word_vocab.txt in this source" in done("prepare", "lm1b", "--source", directory).stdout
    assert store("lm1b").vocab.symbols[:2] == ["<S>", "<UNK>"]


def test_own_text_is_tokenized_by_bytes_by_default(book):
    shown = json_of("prepare", book)
    own = store("my-book")
    assert shown["splits"]["train"]["tokens"] == own.info("train").tokens
    assert shown["splits"]["train"]["begins"].startswith("the fox jumps")
    assert b"".join(own.ids(split).tobytes() for split in own.splits).decode() == BOOK
    assert (own.vocab.size, own.corpus, own.unit, own.metric) == (256, "text", "byte", "bpc")
    assert own.source_digest == hashlib.sha256(BOOK.encode()).hexdigest()


@pytest.mark.parametrize("tokenizer", ["byte", "char", "word", "sentencepiece"])
def test_every_tokenizer_counts_the_same_words(book, tokenizer):
    size = ["--vocab-size", 285] if tokenizer == "sentencepiece" else []
    done("prepare", book, "--tokenizer", tokenizer, "--split", "80,10,10", *size)
    own = store("my-book")
    assert sum(own.info(split).words for split in own.splits) == len(BOOK.split()) + BOOK.count("\n")
    assert "".join(own.vocab.decode(own.ids(split)) for split in own.splits) == BOOK
    assert own.conventions["split"] == "80/10/10 by position, cut at line ends where possible"


def test_rare_words_are_unknown(book):
    book.write_text("a a a b b c\n" * 1 + "a\n" * 40)
    done("prepare", book, "--tokenizer", "word", "--min-count", 2)
    assert store("my-book").vocab.symbols == ["<eos>", "<unk>", "a", "b"]
    done("prepare", book, "--tokenizer", "word", "--vocab-size", 3, "--force")
    own = store("my-book")
    assert own.vocab.symbols == ["<eos>", "<unk>", "a"]
    assert "at most 3 symbols with <eos>" in own.conventions["vocabulary"]
    assert own.info("train").unknown == 3
    done("prepare", book, "--tokenizer", "char", "--min-count", 3, "--force")
    assert store("my-book").vocab.symbols == ["<unk>", "a", "\n", " "]


def test_sentencepiece_is_trained_on_train_only(tmp_path):
    directory = tmp_path / "novel"
    directory.mkdir()
    (directory / "train.txt").write_text(BOOK)
    (directory / "test.txt").write_text("zzzzzzzz qqqqqqqq\n" * 50)
    for sp_type in ("unigram", "bpe"):
        arguments = ("--tokenizer", "sentencepiece", "--vocab-size", 285, "--sp-type", sp_type, "--force")
        done("prepare", directory, *arguments)
        own = store("novel")
        assert own.vocab.decode(own.ids("test")) == "zzzzzzzz qqqqqqqq\n" * 50
        assert not any("zz" in own.vocab.symbol(number) for number in range(own.vocab.size))
        assert own.unit == "piece"
        assert own.every_byte_scored


def test_stores_are_named_after_corpus_and_tokenizer(tmp_path):
    directory = ptb_directory(tmp_path)
    (directory / "ptb.train.txt").write_text(BOOK)
    size = ("--vocab-size", 285)
    done("prepare", "ptb", "--source", directory, "--tokenizer", "byte")
    done("prepare", "ptb", "--source", directory, "--tokenizer", "sentencepiece", *size)
    done("prepare", "ptb", "--source", directory, "--tokenizer", "sentencepiece", *size, "--sp-type", "bpe")
    done("prepare", "ptb", "--source", directory, "--name", "mine")
    assert {path.stem for path in Path("data").iterdir()} == {"mine", "ptb-bpe285", "ptb-byte", "ptb-sp285"}


def test_of_two_preparations_of_one_store_the_second_is_rejected(book, tmp_path):
    Path("data").mkdir()
    with FileLock("data/.my-book.h5.lock"):
        assert "another process" in refusal("prepare", book, "--force", code=1)
    assert not (tmp_path / "data/my-book.h5").exists()
    done("prepare", book)
    assert names_in(Path("data")) == ["my-book.h5"]


def test_list_shows_the_existing_stores(book, tmp_path):
    assert "no token stores in data; make one" in done("prepare", "--list").stdout
    done("prepare", book)
    done("prepare", "ptb", "--source", ptb_directory(tmp_path))
    (tmp_path / "data/broken.h5").write_bytes(b"?")
    assert "data/broken.h5 is damaged" in done("prepare", "--list").stderr
    listed = json_of("prepare", "--list")["stores"]
    assert [entry["name"] for entry in listed] == ["my-book", "ptb"]
    assert listed[1]["tokens"] == {"train": 7, "valid": 3, "test": 4}


def big_text(tmp_path) -> Path:
    """Text of several chunks: ASCII, other scripts, long and short lines."""
    path = tmp_path / "big.txt"
    rng = np.random.default_rng(7)
    words = [*"abcdefg", "naïve", "語", "\u2003", "été"] + [f"w{number}" for number in range(5000)]
    lines = (" ".join(words[i] for i in rng.integers(0, len(words), 9)) for _ in range(3000))
    path.write_text(("\n".join(lines) + "\n") * 2, encoding="utf-8")
    return path


@pytest.mark.parametrize("tokenizer", sampled(2, ["byte", "word", "char", "sentencepiece"]))
def test_any_number_of_workers_gives_the_same_store(tmp_path, tokenizer):
    text = big_text(tmp_path)
    size = 400 if tokenizer == "sentencepiece" else None
    chunk = 1 << 15  # so that worker processes start
    options = [PrepareOptions(tokenizer=tokenizer, vocab_size=size, workers=n) for n in (1, 2)]
    stores = [run(str(text), one, tmp_path / f"data{one.workers}", chunk=chunk) for one in options]
    assert stores[0].fingerprint == stores[1].fingerprint
    assert stores[0].splits == stores[1].splits
    options = PrepareOptions(tokenizer=tokenizer, vocab_size=size, split=(100, 0, 0))
    whole = run(str(text), options, tmp_path / "whole", chunk=chunk)
    assert whole.info("train").words == len(text.read_text().split()) + text.read_text().count("\n")


@pytest.mark.parametrize(
    ("sp_type", "named"), [("unigram", 12 << 12), pytest.param("bpe", 32 << 12, marks=pytest.mark.slow)]
)
def test_sentencepiece_is_trained_on_a_sample_of_a_long_text_and_the_store_says_so(tmp_path, sp_type, named):
    text = tmp_path / "my.txt"
    text.write_text(BOOK * 75 + "zq zq zq\n" * 312)
    options = {"tokenizer": "sentencepiece", "vocab_size": 284, "sp_type": sp_type, "split": (100, 0, 0)}
    stores = [
        run(str(text), PrepareOptions(**options, workers=workers), tmp_path / f"data{workers}", chunk=1 << 12)
        for workers in (1, 2)
    ]
    assert stores[0].fingerprint == stores[1].fingerprint
    assert all(any(f"{named:,}" in line for line in store.notes) for store in stores)
    assert not any("q" in stores[0].vocab.symbol(number) for number in range(stores[0].vocab.size))
    whole = run(str(text), PrepareOptions(**options), tmp_path / "whole")
    assert not any("SentencePiece" in line for line in whole.notes)
    assert any("q" in whole.vocab.symbol(number) for number in range(whole.vocab.size))


# --- downloads ------------------------------------------------------------------------------------------------------


def packed(kind: str, members: dict[str, bytes]) -> bytes:
    return PACKERS[kind](io.BytesIO(), members).getvalue()


def original(content: bytes, site, name: str, served: bytes | None = None) -> Download:
    """Describe an original file that a local server offers."""
    site.files[name] = content if served is None else served
    return Download(
        name, (site.url(f"gone/{name}"), site.url(name)), len(content), f"sha256:{hashlib.sha256(content).hexdigest()}"
    )


@pytest.fixture
def site():
    with serving({}) as site:
        yield site


def prepare_offered(name: str, downloads, digests=(), **options) -> None:
    """Prepare a corpus from these downloads instead of the published ones."""
    plan = make_plan(name, PrepareOptions(**options), Path("data"))
    run_plan(replace(plan, corpus=replace(plan.corpus, downloads=tuple(downloads), digests=dict(digests))))


TEXT8 = b" ab" * 40


def test_text8_is_downloaded_checked_and_unpacked(tmp_path, site):
    downloads = [original(packed("zip", {"text8": TEXT8}), site, "text8.zip")]
    prepare_offered("text8", downloads)
    assert site.agents == {f"txl/{__version__}"}
    assert [path.name for path in (tmp_path / "data/downloads/text8").iterdir()] == ["text8.zip"]
    assert store("text8").info("train").tokens == 108
    assert names_in(Path("data")) == ["downloads", "text8.h5"]
    requests = len(site.requests)
    prepare_offered("text8", downloads, tokenizer="byte")
    assert len(site.requests) == requests


def test_of_two_downloads_of_one_corpus_the_second_is_rejected_and_the_part_is_kept(tmp_path, site):
    downloads = [original(packed("zip", {"text8": TEXT8}), site, "text8.zip")]
    directory = tmp_path / "data/downloads/text8"
    directory.mkdir(parents=True)
    (directory / "text8.zip.part").write_bytes(b"PK")
    rejected = pytest.raises(BusyError, match="another process downloads text8 to data/downloads/text8")
    with FileLock(directory.with_name(".text8.lock")), rejected:
        prepare_offered("text8", downloads, tokenizer="byte")
    assert site.requests == []
    assert (directory / "text8.zip.part").read_bytes() == b"PK"


def test_a_damaged_download_without_a_digest_is_removed(tmp_path, site):
    damaged = packed("tgz", {"data/ptb.train.txt": b" a b \n"})[:40]
    downloads = [replace(original(damaged, site, "simple-examples.tgz"), digest=None)]
    check_offer_refused("damaged, or not gzip", downloads, corpus="ptb")
    assert not (tmp_path / "data/downloads/ptb/simple-examples.tgz").exists()


def on_hosts(site, name: str, contents: dict[str, bytes]) -> tuple[Download, ...]:
    """Describe the published downloads of a corpus, with other contents and each host as a folder of a local server."""

    def moved(download: Download) -> Download:
        content = contents[download.file]
        names = [f"{urllib.parse.urlsplit(address).netloc}/{download.file}" for address in download.addresses]
        site.files.update(dict.fromkeys(names, content))
        return replace(
            download,
            addresses=tuple(site.url(name) for name in names),
            size=len(content),
            digest=f"sha256:{hashlib.sha256(content).hexdigest()}",
            mirror=tuple(map(moved, download.mirror)),
        )

    return tuple(map(moved, corpora.CORPORA[name].downloads))


def rows_of(lines: list[bytes]) -> bytes:
    """Return a Parquet file with the lines of WikiText-103 as its mirror has them: blank lines are empty."""
    file = io.BytesIO()
    rows = ["" if line == b" \n" else line.decode() for line in lines]
    parquet.write_table(arrow.table({"text": arrow.array(rows, arrow.string())}), file, row_group_size=3)
    return file.getvalue()


PTB_FILES = {f"ptb.{split}.txt": b" a b \n" for split in SPLITS}
WIKI_LINES = {
    "train": [b" \n", b" = The fox = \n", b" \n", b" The <unk> naive fox \n", b" \n", b" = = \n", b" a b \n"] * 3,
    "valid": [b" \n", b" = The owl = \n", b" \n", b" \n"],
    "test": [b" \n", b" The owl 's fox . \n"],
}
WIKI_FILES = {f"wiki.{split}.tokens": b"".join(lines) for split, lines in WIKI_LINES.items()}
WIKI_DIGESTS = {name: f"sha1:{hashlib.sha1(text).hexdigest()}" for name, text in WIKI_FILES.items()}
WIKI_ROWS = {
    "train-00000-of-00002.parquet": rows_of(WIKI_LINES["train"][:5]),
    "train-00001-of-00002.parquet": rows_of(WIKI_LINES["train"][5:]),
    "validation-00000-of-00001.parquet": rows_of(WIKI_LINES["valid"]),
    "test-00000-of-00001.parquet": rows_of(WIKI_LINES["test"]),
}
MIRRORED = {
    "enwik8": ("mattmahoney.net", {"enwik8.zip": packed("zip", {"enwik8": b"<page>\n" * 20})}),
    "text8": ("mattmahoney.net", {"text8.zip": packed("zip", {"text8": TEXT8}), "text8.gz": gzip.compress(TEXT8)}),
    "ptb": (
        "www.fit.",
        {"simple-examples.tgz": packed("tgz", {f"data/{name}": text for name, text in PTB_FILES.items()}), **PTB_FILES},
    ),
    "wt103": (
        ("wikitext.smerity.com", "s3.amazonaws.com"),
        {
            "wikitext-103-v1.zip": packed("zip", {f"wikitext-103/{name}": text for name, text in WIKI_FILES.items()}),
            **WIKI_ROWS,
        },
    ),
}


@pytest.mark.parametrize("name", MIRRORED)
def test_a_corpus_is_prepared_from_its_mirror_if_the_first_host_rejects(tmp_path, site, name):
    site.refuse, contents = MIRRORED[name]
    downloads = on_hosts(site, name, contents)
    prepare_offered(name, downloads)
    assert site.requests[0][0].startswith(site.refuse)
    from_mirror, requests = store(name), len(site.requests)
    if downloads[0].mirror:  # its files are not fetched again
        prepare_offered(name, downloads, force=True)
        assert len(site.requests) == requests
    Path("data").rename(tmp_path / "before")
    site.refuse = None
    prepare_offered(name, downloads)
    assert store(name).splits == from_mirror.splits
    assert store(name).source_digest == from_mirror.source_digest


def test_a_file_of_a_mirror_that_is_not_parquet_is_rejected_and_fetched_again(tmp_path, site):
    name = "validation-00000-of-00001.parquet"
    site.refuse, contents = MIRRORED["wt103"]
    page = b"<html>sign in</html>".ljust(len(contents[name]))
    downloads = on_hosts(site, "wt103", contents | {name: page})
    message = f"data/downloads/wt103/{name}: damaged, or not Parquet ("
    check_offer_refused(message, downloads, WIKI_DIGESTS, corpus="wt103")
    assert not (tmp_path / "data/downloads/wt103" / name).exists()
    requests = len(site.requests)
    prepare_offered("wt103", on_hosts(site, "wt103", contents), WIKI_DIGESTS)
    assert [path for path, _ in site.requests[requests:] if path.startswith("huggingface.co")] == [
        f"huggingface.co/{name}"
    ]


def written(directory: Path, contents: dict[str, bytes]) -> Path:
    """Write files into a new folder."""
    for name, content in contents.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(content)
    return directory


def test_parquet_files_of_a_mirror_are_a_source(tmp_path):
    written(tmp_path / "wiki", dict(reversed(WIKI_ROWS.items())))
    prepared = done("prepare", "wt103", "--source", "wiki")
    assert prepared.stdout.splitlines()[-1] == "next: txl train wt103 --set 'model.cutoffs=[]'"  # V is small
    done("prepare", "wt103", "--source", written(tmp_path / "plain", WIKI_FILES), "--name", "plain")
    assert store("wt103").source_digest == store("plain").source_digest
    done("prepare", "text8", "--source", written(tmp_path / "packed", {"a.gz": gzip.compress(TEXT8)}) / "a.gz")
    two = written(tmp_path / "two", {f"{name}/{file}": b"" for name in ("v1", "v2") for file in WIKI_ROWS})
    assert "have the same name; give the folder of one of them" in refusal(
        "prepare", "wt103", "--source", two, "--force", code=1
    )
    result = done("prepare", "wt103", "--source", "wiki/test-00000-of-00001.parquet", "--name", "test")
    assert "note: wiki.test.tokens is not the original file" in result.stdout
    assert store("test").splits["test"].bytes == len(WIKI_FILES["wiki.test.tokens"])


BENCHMARKS = {
    "enwik8": {"enwik8": b"<page>\n" * 20},
    "text8": {"text8": TEXT8},
    "wt103": {f"wikitext-103/wiki.{split}.tokens": b" a b \n" for split in SPLITS},
    "wt2": {f"wikitext-2/wiki.{split}.tokens": b" a b \n" for split in SPLITS},
    "ptb": {f"simple-examples/data/ptb.{split}.txt": b" a b \n" for split in SPLITS},
    "lm1b": {"r13/news.en-00001-of-00100": b"The cat .\n", "r13/news.en.heldout-00000-of-00050": b". .\n"},
}


def published(name: str) -> dict[str, bytes]:
    """Return the files that `txl prepare` keeps after downloading a benchmark."""
    files = {}
    for download in corpora.CORPORA[name].downloads:
        kind = "zip" if download.file.endswith(".zip") else "tgz"
        files[download.file] = packed(kind, BENCHMARKS[name])
    return files | ({"1b_word_vocab.txt": b"<S> 9\n<UNK> 5\nThe 4\n. 1\n"} if name == "lm1b" else {})


@pytest.mark.parametrize("name", BENCHMARKS)
def test_the_published_archive_is_read_from_a_directory_without_its_files(tmp_path, name):
    downloads = written(tmp_path / "downloads", published(name))
    done("prepare", name, "--source", downloads)
    from_archive = store(name)
    words = {file: content for file, content in published(name).items() if file == "1b_word_vocab.txt"}
    done("prepare", name, "--source", written(tmp_path / "plain", BENCHMARKS[name] | words), "--name", "plain")
    plain = store("plain")
    assert (from_archive.fingerprint, from_archive.splits) == (plain.fingerprint, plain.splits)
    assert from_archive.source_digest == plain.source_digest
    # Unpacked files take precedence.
    written(downloads, {Path(member).name: content * 2 for member, content in BENCHMARKS[name].items()})
    done("prepare", name, "--source", downloads, "--force")
    read = store(name)
    assert sum(info.bytes for info in read.splits.values()) == 2 * sum(map(len, BENCHMARKS[name].values()))


def assert_no_store():
    assert not list(Path("data").glob("*.h5"))
    assert not list(Path("data").glob(".*"))


def check_refused(message: str, *arguments) -> None:
    assert message in refusal("prepare", *arguments, code=1)
    assert_no_store()


def check_offer_refused(message: str, downloads, digests=(), corpus: str = "text8") -> None:
    assert message in rejection(CorpusInputError, prepare_offered, corpus, downloads, digests)
    assert_no_store()


def test_a_download_that_is_missing_or_not_the_original_is_rejected(tmp_path, site):
    downloads = [original(packed("zip", {"text8": TEXT8}), site, "text8.zip")]
    check_offer_refused("wrong digest: md5", downloads, {"text8": "md5:00"})
    assert not list(tmp_path.glob("text8"))
    site.files.clear()
    (tmp_path / "data/downloads/text8/text8.zip").unlink()
    check_offer_refused("404", downloads)


# --- errors --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "telling"),
    [
        ("enwiki8", "enwik8"),
        ("", "prepare what?"),
        ("stdlib --split a,b", "90,5,5"),
        ("--list stdlib", "--list"),
        ("stdlib --name mine.h5", "give --name mine"),
    ],
)
def test_wrong_options_are_rejected_before_anything_starts(words, telling):
    assert telling in refusal("prepare", *words.split())
    assert not Path("data").exists()


@pytest.mark.parametrize(
    ("content", "arguments", "message"),
    [
        (b"", [], "no text"),
        (b"      ", ["--tokenizer", "word", "--split", "50,50,0"], "blanks"),
        (b"a good line\n" * 50 + b"bad \xff\n" + b"x\n" * 50, ["--tokenizer", "word"], "byte 604"),
        (b"\xff\n" * 5000, ["--tokenizer", "sentencepiece"], "byte 0"),
    ],
)
def test_unusable_text_is_named(tmp_path, content, arguments, message):
    (tmp_path / "my.txt").write_bytes(content)
    check_refused(message, tmp_path / "my.txt", *arguments)


def test_an_empty_or_missing_split_that_is_needed_is_named(tmp_path):
    directory = ptb_directory(tmp_path)
    (directory / "ptb.valid.txt").write_text("")
    check_refused("ptb.valid.txt: the valid split is empty", "ptb", "--source", directory)
    (directory / "ptb.train.txt").unlink()
    (directory / "ptb.valid.txt").write_text("a")
    check_refused("this source has none", "ptb", "--source", directory, "--tokenizer", "sentencepiece")


def test_a_vocab_size_that_does_not_fit_the_text_is_rejected_with_one_that_does(book):
    arguments = (book, "--tokenizer", "sentencepiece", "--vocab-size")
    bound = len(BOOK.encode()) * 9 // 10 + 256 + 2
    least = 256 + 2 + len(set(BOOK) - {"\n"})  # bytes, <eos> and <unk>, characters
    assert "give a much smaller one" in refusal("prepare", *arguments, 1 << 30)  # its training would take hours
    told = []
    for size in (bound - 20, 200):
        told.append(int(re.findall(r"\d+", refusal("prepare", *arguments, size))[-1]))
    assert told[1] == least
    assert list(Path("data").iterdir()) == []
    for size in (told[0], least):
        done("prepare", *arguments, size, "--force")
