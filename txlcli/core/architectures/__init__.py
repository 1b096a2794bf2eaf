"""Architectures: one file each, registered as a package of your own registers one; `core.model` has the paper's model.

A file has the modules of an architecture, its memory rule, the count of its operations, and how readers read with it.
The settings are classes of `config.model_settings`, since recipes are read without torch.
"""

from txlcli.core.architectures import compressive, lstm, qrnn, rmt, transformer
from txlcli.core.architectures.registry import register_architecture

__all__ = ["compressive", "lstm", "qrnn", "register_architecture", "rmt", "transformer"]
