"""Sphinx configuration of the manual: `python -m sphinx -W --keep-going -n -b html docs docs/_build/html`."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent / "_ext")]

from txlcli import __version__

project = "txl"
author = "The txl maintainers"
project_copyright = "the txl maintainers, MIT licence"
version = release = __version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton", "reference_pages"]
exclude_patterns = ["_build", "_ext", "figures/*.py"]
templates_path: list[str] = []

myst_enable_extensions = ["attrs_block", "attrs_inline", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
nitpick_ignore_regex = [("py:.*", ".*")]  # classes outside the stable interface
nb_execution_mode = "off"  # its outputs are stored, see CONTRIBUTING.md
smartquotes = False
highlight_language = "none"

html_theme = "furo"
html_title = f"txl {release}"
html_static_path = ["_static"]
html_extra_path = ["llms.txt"]
html_css_files = ["manual.css"]
html_show_sphinx = False
html_copy_source = False
