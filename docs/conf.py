"""How the documentation is built: ``python -m sphinx -W -b html docs docs/_build/html``."""

import os
import re
from contextlib import suppress
from pathlib import Path

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

import tapegrad

with suppress(FileExistsError):  # Sphinx reads pages below its own folder only
    (Path(__file__).parent / "notebooks").symlink_to("../notebooks", target_is_directory=True)

project = "tapegrad"
author = "the authors of tapegrad"
version = release = tapegrad.__version__

extensions = [f"sphinx.ext.{name}" for name in ("autodoc", "autosummary", "napoleon", "viewcode")]
extensions.append("myst_nb")
exclude_patterns = ["_build"]
root_doc = "index"
html_theme = "furo"
html_title = f"tapegrad {release}"
html_static_path, html_css_files = ["_static"], ["site.css"]
html_show_copyright = False
html_math_renderer = "mathml"  # which browsers draw themselves: no script, no server
pygments_dark_style = "github-dark"

# A page is run whenever it is built, so that what it shows is what the library does; a cell that raises ends
# the build.
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 120
os.environ["NOTEBOOK_SMALL"] = "1"  # shorter runs in the notebooks that take long
nb_execution_show_tb = True
nb_output_stderr = "remove"  # what compiles for long is named there
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3

autodoc_typehints = "none"  # the docstrings have them in words
autodoc_member_order = "groupwise"
autosummary_generate = False
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True  # attributes are members, described once
suppress_warnings = ["ref.python"]  # names that several classes have, such as dtype


FUNCTION, THIN = "(<mi>(?:cos|exp|ln|log|sin)</mi>)", '<mspace width="0.17em"/>'


def without_last_lines(app: Sphinx, tree: nodes.document) -> None:
    """Take empty lines off the ends of examples, where doctest wants one after the output."""
    for block in tree.findall(nodes.literal_block):
        if block.rawsource == block.astext():  # with no markup in it
            block.rawsource = block.astext().rstrip()
            block[:] = [nodes.Text(block.rawsource)]


def mathml(text: str, display: str) -> str:
    """Convert a formula; names of functions stand apart from letters and numbers, as in TeX."""
    apart = re.sub(FUNCTION + "(?=<m[inrsf])", r"\1" + THIN, convert(text, display=display))
    return re.sub("(?<=</m[in]>)" + FUNCTION, THIN + r"\1", apart)


def inline_formula(page: HTML5Translator, node: nodes.math) -> None:
    """Write a formula of a line."""
    page.body.append(mathml(node.astext(), "inline"))
    raise nodes.SkipNode


def formula(page: HTML5Translator, node: nodes.math_block) -> None:
    """Write a formula that stands alone."""
    page.body.append(f'<div class="formula">{mathml(node.astext(), "block")}</div>')
    raise nodes.SkipNode


def without_data(app: Sphinx, what: str, name: str, *_: object) -> tuple[str, str] | None:
    """Show `Tensor` without arguments: functions make them."""
    return ("", "") if name == "tapegrad.Tensor" else None


def setup(app: Sphinx) -> None:
    """Register what is above."""
    app.connect("autodoc-process-signature", without_data)
    app.connect("doctree-read", without_last_lines)
    app.add_html_math_renderer("mathml", (inline_formula, None), (formula, None))
