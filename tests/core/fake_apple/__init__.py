"""An Apple GPU without the hardware: it has shapes and dtypes, runs no kernel, and rejects what the real one lacks."""

from pathlib import Path

SOURCE = Path(__file__).with_name("helper.cpp")
