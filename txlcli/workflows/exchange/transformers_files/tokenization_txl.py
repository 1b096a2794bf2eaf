"""Tokenizer of a model that `txl export` wrote: bytes, characters, words or SentencePiece, as `vocab.json` says."""

import base64
import json
import re
import shutil
from pathlib import Path

from transformers import PreTrainedTokenizer

SPACE = "\u2581"  # stands for a blank inside pieces of SentencePiece
REPLACEMENT = "\ufffd"  # stands for an unknown character in decoded text
AS_BYTES = f"{SPACE}\0"  # characters that are always pieces of bytes


class TxlTokenizer(PreTrainedTokenizer):
    """Encodes and decodes text exactly as txl does; words are divided by blanks, and each line end has a symbol.

    There are no special tokens, which would disappear from decoded text: a text begins after a line end, if line ends
    have a symbol (`bos_token`), which may also be written before it. Padding, at the left, is hidden by the attention
    mask. Its id is rarely or never in a text, since data collators leave labels with this id out of the loss.
    """

    vocab_files_names = {"vocab_file": "vocab.json"}
    model_input_names = ["input_ids", "attention_mask"]
    padding_side = "left"

    def __init__(self, vocab_file, **options):
        self.vocab_file = vocab_file
        self.facts = json.loads(Path(vocab_file).read_text(encoding="utf-8"))
        self.kind = self.facts["kind"]
        if self.kind == "sentencepiece":
            import sentencepiece

            model = base64.b64decode(self.facts["model"])
            self.processor = sentencepiece.SentencePieceProcessor(model_proto=model)
            self.symbols = [self.processor.id_to_piece(number) for number in range(self.processor.vocab_size())]
        elif self.kind == "byte":
            self.symbols = [chr(value) for value in self.facts["bytes"]]
        else:
            self.symbols = self.facts["symbols"]
        self.ids = {symbol: number for number, symbol in enumerate(self.symbols)}
        boundary = self.facts["boundary"]
        self.line_end = None if boundary is None else self.symbols[boundary]
        options.setdefault("clean_up_tokenization_spaces", False)
        super().__init__(**options)

    @property
    def vocab_size(self):
        return len(self.symbols)

    @property
    def pad_token(self):
        return self.symbols[self.pad_token_id]

    @property
    def pad_token_id(self):
        if self.kind == "sentencepiece":
            return self.facts["unknown"]  # never in a text: bytes stand for what has no piece
        return len(self.symbols) - 1  # the rarest symbol

    @property
    def bos_token(self):
        return self.line_end

    @property
    def bos_token_id(self):
        return self.facts["boundary"]

    def get_vocab(self):
        return dict(self.ids)

    def _tokenize(self, text, **options):
        if self.kind == "byte":
            return [chr(value) for value in text.encode().translate(None, bytes(self.facts["dropped"]))]
        if self.kind == "char":
            return list(text)
        if self.kind == "word":
            return self._words(text)
        return self._pieces(text)

    def _words(self, text):
        text = text.lower() if self.facts["lower_case"] else text
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        if self.line_end is None:
            return text.split()
        if text.startswith(self.line_end):  # `bos_token` and a text
            text = text.replace(self.line_end, f"{self.line_end} ", 1)
        # The symbol of a line end, written in the text before a line end, is that same line end.
        text = re.sub(rf"(?<!\S){re.escape(self.line_end)}[^\S\n]*\n", "\n", text)
        return text.replace("\n", f" {self.line_end} ").split()

    def _pieces(self, text):
        if text.startswith(self.line_end):  # `bos_token` and a text
            text = text.replace(self.line_end, "\n", 1)
        pieces = []
        for part in re.split(f"(\n+|[{AS_BYTES}])", text):
            if part.startswith("\n") and self.line_end == "<eos>":  # in models that txl trained
                pieces += [self.line_end] * len(part)
            elif part and part in AS_BYTES:
                pieces += [f"<0x{value:02X}>" for value in part.encode()]
            else:
                pieces += self.processor.encode(part, out_type=str)
        return [piece if piece in self.ids else self.symbols[self.facts["unknown"]] for piece in pieces]

    def _convert_token_to_id(self, token):
        number = self.ids.get(token, self.facts["unknown"])
        if number is None:
            raise ValueError(f"the vocabulary lacks {token!r}; leave it out of the text")
        return number

    def _convert_id_to_token(self, index):
        return self.symbols[index]

    def convert_tokens_to_string(self, tokens):
        if self.kind == "byte":
            return "".join(tokens).encode("latin-1").decode(errors="replace")
        if self.kind == "char":
            unknown = None if self.facts["unknown"] is None else self.symbols[self.facts["unknown"]]
            return "".join(REPLACEMENT if token == unknown else token for token in tokens)
        if self.kind == "word":
            lines = " ".join("\n" if token == self.line_end else token for token in tokens)
            return re.sub(" ?\n ?", "\n", lines)
        return b"".join(self._bytes(piece) for piece in tokens).decode(errors="replace")

    def _bytes(self, piece):
        if piece == self.line_end:
            return b"\n"
        if re.fullmatch("<0x[0-9A-F]{2}>", piece):
            return bytes([int(piece[3:5], 16)])
        return piece.replace(SPACE, " ").encode()

    def save_vocabulary(self, save_directory, filename_prefix=None):
        name = "vocab.json" if filename_prefix is None else f"{filename_prefix}-vocab.json"
        path = Path(save_directory) / name
        if path.resolve() != Path(self.vocab_file).resolve():
            shutil.copyfile(self.vocab_file, path)
        return (str(path),)
