from tests.commands.conftest import here, trained_novel

__all__ = ["here", "trained_novel"]
