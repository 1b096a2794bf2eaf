"""How fast `txl prepare` turns text into a token store, as bytes and as words, and how much memory it takes.

python -m tests.benchmarks.corpus [--megabytes 256] [--workers 2] [--quick] [--json]

The text is made here: bytes are the source of Python's standard library over and over, words are drawn by Zipf's law
from a vocabulary of the size of WikiText-103's. Each preparation is a process of its own. What is timed is the whole,
from the files to the store: cutting, counting, the vocabulary, encoding, the digest of the source, writing.
"""

import json as json_format
import subprocess
import sys
import sysconfig
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from txlcli import console

TYPES = 267_733  # with the boundary and the unknown word as many as WikiText-103 has
TARGETS = {"byte": 100e6, "word": 8e6}  # tokens per second
MAX_BYTES = 2 << 30
WORDS_PER_LINE, WORDS_PER_BLOCK, BLOCKS = 23, 1_000_003, 8
LETTERS = np.array(list("etaoinshrdlcumwfgypbvkjxqz"))


def library_text():
    """The source of the standard library's own modules."""
    directory = Path(sysconfig.get_path("stdlib"))
    return b"".join(path.read_bytes() for path in sorted(directory.glob("*.py")))


def zipf_blocks(types):
    """Blocks of lines; the first one begins with every word once."""
    words = np.array([word(rank) for rank in range(types)])
    yield _lines(words)
    random = np.random.default_rng(5)
    for _ in range(BLOCKS):
        ranks = np.exp(random.random(WORDS_PER_BLOCK) * np.log(types + 1)).astype(np.int64) - 1
        yield _lines(words[ranks])


def word(rank):
    """Frequent words are short: the rank in base 26."""
    letters = ""
    while True:
        letters += LETTERS[rank % 26]
        rank = rank // 26 - 1
        if rank < 0:
            return letters


def _lines(words):
    return "".join(
        " ".join(words[first : first + WORDS_PER_LINE]) + "\n" for first in range(0, len(words), WORDS_PER_LINE)
    ).encode()


def write_text(path, kind, size, types=TYPES):
    """About `size` bytes of text."""
    blocks = [library_text()] if kind == "byte" else list(zipf_blocks(types))
    with path.open("wb") as file:
        while file.tell() < size:
            for block in blocks:
                file.write(block)
                if file.tell() >= size:
                    break


def prepare_here(corpus, data, workers, **options):
    """Prepare a corpus, or a file, in this process, and print what it took."""
    import resource

    from txlcli.workflows.options import PrepareOptions
    from txlcli.workflows.preparation import preparing
    from txlcli.workflows.reporter import CallbackReporter

    def peak_bytes(who):
        return 1024 * resource.getrusage(who).ru_maxrss

    seconds, sums = {}, []

    class Timed(CallbackReporter):
        @contextmanager
        def progress(self, description, total=None, unit="", start=0.0):
            started = time.perf_counter()
            with super().progress(description, total, unit) as step:
                yield step
            seconds[description] = time.perf_counter() - started
            if description == "reading":  # its workers have ended, and are the only children so far
                sums.append(peak_bytes(resource.RUSAGE_SELF) + workers * peak_bytes(resource.RUSAGE_CHILDREN))

    started = time.perf_counter()
    wishes = PrepareOptions(workers=workers, force=True, **options)
    store = preparing.run(str(corpus), wishes, data, reporter=Timed()).store
    whole = time.perf_counter() - started
    sums.append(peak_bytes(resource.RUSAGE_SELF) + peak_bytes(resource.RUSAGE_CHILDREN))  # one copy checks the store
    tokens = sum(split.tokens for split in store.splits.values())
    print(
        json_format.dumps(
            {
                "tokenizer": store.facts.tokenizer,
                "tokens": tokens,
                "vocabulary_size": store.vocab.size,
                "seconds": whole,
                "seconds_by_step": seconds,
                "tokens_per_s": tokens / whole,
                "peak_bytes": max(sums),
            }
        )
    )


def show(results, workers):
    lines = [
        [
            result["tokenizer"],
            f"{result['tokens']:,}",
            f"{result['vocabulary_size']:,}",
            f"{result['tokens_per_s'] / 1e6:.1f} M",
            f">= {TARGETS[result['tokenizer']] / 1e6:.0f} M",
            ", ".join(f"{step} {seconds:.1f} s" for step, seconds in result["seconds_by_step"].items()),
            f"{result['peak_bytes'] / 2**20:,.0f} MiB",
            f"<= {MAX_BYTES >> 20:,} MiB",
        ]
        for result in results
    ]
    caption = (
        "memory: at most; the peak of the first process and, as often as there are workers, of the largest one, or of "
        "the copy of the first process that checks the store."
    )
    headings = ("tokens", "count", "V", "tokens/s", "target", "of which", "memory", "target")
    console.show_table(f"txl prepare, {workers} workers", headings, lines, [caption])


def main(
    megabytes: Annotated[int, typer.Option(min=1, help="Size of each text.")] = 256,
    workers: Annotated[int, typer.Option(min=1, help="Processes that read text.")] = 2,
    quick: Annotated[bool, typer.Option("--quick", help="A megabyte: shows whether it runs.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")] = False,
) -> None:
    """Measure `txl prepare` on text that is made on the spot."""
    results = []
    for kind in TARGETS:
        with tempfile.TemporaryDirectory() as directory:
            text = Path(directory) / f"{kind}.txt"
            write_text(text, kind, (1 if quick else megabytes) << 20)
            code = (
                f"from tests.benchmarks.corpus import *; prepare_here({str(text)!r}, Path({directory!r}, 'data'), "
                f"{workers}, tokenizer={kind!r}, split='98,1,1')"
            )
            done = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE)
            results.append(json_format.loads(done.stdout))
    if json:
        console.show_json({"workers": workers, "quick": quick, "texts": results})
    else:
        show(results, workers)


if __name__ == "__main__":
    typer.run(main)
