"""Sphinx, for `make docs`: reads what `python -m docs.generate` wrote, and looks up nothing on a network."""

from __future__ import annotations

import sys
from importlib.metadata import version as version_of
from pathlib import Path

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.ext.napoleon import Config, GoogleDocstring
from sphinx.writers.html5 import HTML5Translator

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what is documented is this checkout

from docs.docstrings import with_marked_code

project = "polypool"
author = "the authors of polypool"
release = version = version_of("polypool")
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode"]
exclude_patterns = ["files"]

myst_enable_extensions = ["colon_fence", "deflist", "tasklist"]
myst_heading_anchors = 4
COMMANDS = "sh"  # what indented blocks are; what a terminal printed, and code, is fenced and says what it is
smartquotes_action = "qe"  # -- begins an option
default_role = "code"  # docstrings have Markdown's single backticks

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
maximum_signature_line_length = 80
nitpicky = True
nitpick_ignore_regex = [("py:.*", r".*")]  # types in signatures: most are of other packages, or of no page

html_math_renderer = "mathml"  # browsers draw it themselves: no script, and nothing from a network
html_theme = "furo"
html_title = "polypool"
html_static_path = ["static"]
html_css_files = ["polypool.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True, "top_of_page_buttons": []}

_GOOGLE = Config(napoleon_use_ivar=True, napoleon_use_rtype=False)


def rewrite(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Make a docstring one that docutils reads as it is meant: its code, and sections such as `Args:`.

    What stands below an attribute is left as it is, though as an extension napoleon would take what is before its first
    colon for a type.
    """
    lines[:] = with_marked_code(lines)
    if what not in ("attribute", "data", "property"):
        lines[:] = GoogleDocstring(lines, _GOOGLE, app, what, name, obj, options).lines()


def name_commands(app: Sphinx, doctree: nodes.document) -> None:
    """Have indented blocks, of which MyST says that they are in no language, shown as commands.

    What autodoc sets between a parameter and what it is, two hyphens that `smartquotes_action` leaves, becomes a dash.
    """
    for text in [*doctree.findall(nodes.Text)]:
        if text == " -- ":
            text.parent.replace(text, nodes.Text(" \N{EN DASH} "))
    for block in doctree.findall(nodes.literal_block):
        if block.get("language") == "none":
            block["language"] = COMMANDS


def draw_inline(translator: HTML5Translator, node: nodes.math) -> None:
    """Write a formula in a line of text."""
    translator.body.append(_mathml(node.astext(), as_block=False))
    raise nodes.SkipNode


def draw_block(translator: HTML5Translator, node: nodes.math_block) -> None:
    """Write a formula of its own."""
    translator.body.append(f'<div class="math">{_mathml(node.astext(), as_block=True)}</div>\n')
    raise nodes.SkipNode


def _mathml(tex: str, *, as_block: bool) -> str:
    try:
        return tex2mathml(tex, as_block=as_block)
    except MathError as error:
        raise ExtensionError(f"the formula {tex} cannot be read: {error}") from error


def setup(app: Sphinx) -> None:
    """Have docstrings rewritten, commands known, and formulas written as MathML."""
    app.add_html_math_renderer("mathml", (draw_inline, None), (draw_block, None))
    app.connect("autodoc-process-docstring", rewrite)
    app.connect("doctree-read", name_commands)
