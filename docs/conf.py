"""Sphinx settings for `make docs`: Markdown pages and docstrings, no network."""

from __future__ import annotations

import re
import sys
import tomllib
from html import unescape
from pathlib import Path

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.ext.napoleon import Config, GoogleDocstring
from sphinx.writers.html5 import HTML5Translator

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # document this checkout

project = "polypool"
author = "the authors of polypool"
version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode"]
exclude_patterns = ["generate"]

myst_enable_extensions = ["colon_fence", "deflist", "tasklist"]
myst_heading_anchors = 4
myst_links_external_new_tab = False
smartquotes_action = "qe"  # leaves `--` of options unchanged
default_role = "code"  # docstrings have Markdown's single backticks

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
maximum_signature_line_length = 80
nitpicky = True
nitpick_ignore_regex = [("py:.*", r".*")]  # types in signatures: most belong to other packages, or to no page

html_math_renderer = "mathml"  # rendered by browsers, without scripts or network
html_theme = "furo"
html_title = f"polypool {version}"
html_static_path = ["static"]
html_css_files = ["polypool.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True, "top_of_page_buttons": []}

_GOOGLE = Config(napoleon_use_ivar=True, napoleon_use_rtype=False)


def read_google_style(
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Rewrite sections such as `Args:`, except of attributes, whose text napoleon would split at its first colon.

    An indented block after an empty line is code, as in Markdown.
    """
    lines[:] = re.sub(r"(?m)^(\S.*(?<!::))\n\n(?= {4}\S)", r"\1\n\n::\n\n", "\n".join(lines)).split("\n")
    if what not in ("attribute", "data", "property"):
        lines[:] = GoogleDocstring(lines, _GOOGLE, app, what, name, obj, options).lines()


def link_pages(app: Sphinx, page: str, source: list[str]) -> None:
    """Redirect links to CONTRIBUTING.md, which work on GitHub, to the page that includes it."""
    source[0] = source[0].replace("](../CONTRIBUTING.md", "](contributing.md")


def mark_commands(app: Sphinx, doctree: nodes.document) -> None:
    """Highlight indented blocks, which have no language in Markdown, as shell commands."""
    for block in doctree.findall(nodes.literal_block):
        if block.get("language") == "none":
            block["language"] = "sh"


def draw_inline(translator: HTML5Translator, node: nodes.math) -> None:
    """Write a formula within a line."""
    translator.body.append(_mathml(node.astext(), as_block=False))
    raise nodes.SkipNode


def draw_block(translator: HTML5Translator, node: nodes.math_block) -> None:
    """Write a display formula."""
    translator.body.append(f'<div class="math">{_mathml(node.astext(), as_block=True)}</div>\n')
    raise nodes.SkipNode


def _mathml(tex: str, *, as_block: bool) -> str:
    try:
        return tex2mathml(tex, as_block=as_block)
    except MathError as error:
        raise ExtensionError(f"the formula {tex} cannot be read: {error}") from error


def check_pages(app: Sphinx, error: Exception | None) -> None:
    """Raise an error if a page of Sphinx's own, such as search.html, has replaced one of ours."""
    for name in app.env.found_docs if error is None else ():
        headings = re.findall(r"<h1>(.*?)</h1>", Path(app.outdir, f"{name}.html").read_text(), re.DOTALL)
        if app.env.titles[name].astext() not in [
            unescape(re.sub(r"<.*?>|¶|#$", "", text)) for text in headings
        ]:
            raise ExtensionError(
                f"{name}.html does not show {name}.md ({headings}); Sphinx may use that name itself"
            )


def setup(app: Sphinx) -> None:
    """Connect docstrings, commands and formulas."""
    app.add_html_math_renderer("mathml", (draw_inline, None), (draw_block, None))
    app.connect("source-read", link_pages)
    app.connect("autodoc-process-docstring", read_google_style)
    app.connect("doctree-read", mark_commands)
    app.connect("build-finished", check_pages)
