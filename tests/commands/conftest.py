import shutil
import socket

import pytest

from tests.commands.novel import prepare_and_train, train, write_texts
from tests.extensions import registered_watched


@pytest.fixture(scope="session")
def trained_novel(tmp_path_factory):
    directory = tmp_path_factory.mktemp("trained") / "here"
    prepare_and_train(directory)
    return directory


@pytest.fixture
def here(trained_novel, tmp_path, monkeypatch):
    """Make a copy of the novel, its stores and its trained runs the current folder."""
    shutil.copytree(trained_novel, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def untouched(tmp_path, monkeypatch):
    """Make a folder with only the novel and the recipe the current one."""
    write_texts(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def watched(here):
    """Train the run "watched", whose encoding calls the functions of the watch that this gives."""
    with registered_watched() as watch:
        train("model.position=watched", name="watched")
        yield watch


@pytest.fixture
def free_port():
    """Return a port of this machine that no program uses."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]
