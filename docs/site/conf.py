"""The site: the pages of the repository as they are, with a table of contents, rendered diagrams and the API.

`make docs` builds it from the root of the repository, so that links between pages lead where they lead in a checkout.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import dirqueue  # noqa: E402 - found by the line above

project, author, copyright = "dirqueue", "the dirqueue authors", "the dirqueue authors"
version = release = dirqueue.__version__
root_doc = "docs/index"
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
include_patterns = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs/**"]
exclude_patterns = [".*", "**/.*", "site", "dist", "build", "artifacts", "benchmarks", "tests", "dirqueue"]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.graphviz"]
html_theme = "furo"
html_title = f"dirqueue {version}"
html_extra_path = ["index.html"]
html_show_copyright = False
templates_path: list[str] = []
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
graphviz_output_format = "svg"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autoclass_content = "both"
default_role = "code"
autodoc_default_options = {"members": True, "show-inheritance": False}
pygments_style = "friendly"
# A fence for people at a shell ends in what it printed, which is no shell; a lexer that gives up is no mistake of the page.
suppress_warnings = ["misc.highlighting_failure"]


def contents(text: str) -> str:
    """Return the index with a table of contents made from its own sections: every page that a section links."""
    trees = []
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        caption, _, body = section.partition("\n")
        pages = [page for page in re.findall(r"\]\(([^)#\s]+\.md)\)", body) if not page.startswith("..")]
        outside = [f"/{page[3:]}" for page in re.findall(r"\]\((\.\./[A-Z]+\.md)\)", body)]
        if caption == "Look up":
            pages.insert(0, "site/api")
        names = "\n".join(re.sub(r"\.md$", "", page) for page in dict.fromkeys([*pages, *outside]))
        trees.append(f"```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{names}\n```\n")
    first = "```{toctree}\n:hidden:\n\n/README\n/CHANGELOG\n```\n"
    return text + "\n" + first + "\n".join(trees)


#: A state diagram for Graphviz, up to its transitions.
HEAD = """:::{graphviz}
:alt: the states of a message, and how it changes between them

digraph states {
  rankdir=LR; bgcolor="transparent";
  node [shape=box, style="rounded,filled", fillcolor="#e8eef7", fontname="sans-serif", fontsize=11];
  edge [fontname="sans-serif", fontsize=9, color="#5c6670"];
  begin [shape=circle, label="", width=.15, style=filled, fillcolor=black];
  gone [shape=doublecircle, label="", width=.12, style=filled, fillcolor="#5c6670"];
"""
MERMAID = re.compile(r"^```mermaid\n(stateDiagram.*?)^```\n", re.MULTILINE | re.DOTALL)
TRANSITION = re.compile(r"\s*(\S+) --> (\S+): (.*)")


def diagram(match: re.Match[str]) -> str:
    """Return a state diagram in mermaid's notation as one in Graphviz's."""
    lines = [HEAD.rstrip()]
    for found in filter(None, map(TRANSITION.fullmatch, match[1].splitlines())):
        one, other = found[1].replace("[*]", "begin"), found[2].replace("[*]", "gone")
        label = found[3].replace(" · ", "\\n")
        lines.append(f'  {one} -> {other} [label="{label}"];')
    return "\n".join([*lines, "}", ":::", ""])


def adapt(app: object, name: str, source: list[str]) -> None:
    """Change what a page says only where a site can do more than a checkout."""
    if name == root_doc:
        source[0] = contents(source[0])
    if shutil.which("dot"):  # without it a diagram is shown as it is written
        source[0] = MERMAID.sub(diagram, source[0])
    # A fence of ours carries a second word for the tests; the site needs the language alone.
    source[0] = re.sub(r"^```(console|text) \w+$", r"```\1", source[0], flags=re.MULTILINE)


def setup(app: object) -> dict[str, bool]:
    """Connect."""
    app.connect("source-read", adapt)  # type: ignore[attr-defined]
    return {"parallel_read_safe": True}
