"""How Sphinx builds the site: `sphinx-build -W -c docs . build/site`, then open build/site/index.html.

The source is the whole repository, so that a link leads to the same file on the site and where the
Markdown itself is read.
"""

from pathlib import Path
from typing import Any

project = "dtrain"
author = "the authors of dtrain"
extensions = ["myst_parser", "sphinx_copybutton", "sphinx_design"]
source_suffix = {".md": "markdown"}
root_doc = "docs/index"
include_patterns = ["*.md", "docs/*.md", "docs/**/*.md", "benchmarks/*.md", "tests/*.md", "tests/*/*.md"]
include_patterns += ["examples/data/*.md"]
exclude_patterns = ["build", "**/.*"]
myst_heading_anchors = 6  # by GitHub's rules, to which the links of the pages are written
myst_enable_extensions = ["colon_fence"]
copybutton_prompt_text = r"^[\w-]*\$ "
copybutton_prompt_is_regexp = True
html_theme = "furo"
html_title = "dtrain"
html_copy_source = False
html_show_copyright = False
html_static_path = ["_static"]
html_css_files = ["dtrain.css"]
templates_path = ["_templates"]
html_additional_pages = {"index": "redirect.html"}
linkcheck_anchors = False  # many sites make their anchors by scripts
linkcheck_timeout = 20


def complete(app: Any, docname: str, source: list[str]) -> None:
    """Put the pages of a folder below its README, and pages outside of docs/ into no table of contents."""
    if docname.startswith("docs/") and docname.count("/") > 1 and docname.endswith("/README"):
        source[0] += "\n```{toctree}\n:hidden:\n:glob:\n\n*\n```\n"
    elif docname in ("README", "AGENTS") or docname.startswith(("tests/", "examples/")):
        source[0] = f"---\norphan: true\n---\n{source[0]}"


def write_for_models(app: Any, error: Exception | None) -> None:
    """Write llms.txt, which lists the pages by their titles, and llms-full.txt, which has their Markdown."""
    if error or app.builder.name != "html":
        return
    out, full = Path(app.outdir), ""
    lines = [f"# {project}", "", "> One training program becomes a cluster of processes on CPUs.", ""]
    listed = sorted(app.env.found_docs - {root_doc, "README"}, key=lambda name: (name.count("/"), name))
    for name in (each for each in listed if each.startswith("docs/") and "/api/" not in each):
        lines.append(f"- [{app.env.titles[name].astext()}]({name}.html)")
        full += f"<!-- {name}.md -->\n\n{Path(app.srcdir, f'{name}.md').read_text()}\n"
    (out / "llms.txt").write_text("\n".join([*lines, ""]))
    (out / "llms-full.txt").write_text(full)


def setup(app: Any) -> dict[str, bool]:
    """Register what completes the pages, and what is written beside them."""
    app.connect("source-read", complete)
    app.connect("build-finished", write_for_models)
    return {"parallel_read_safe": True}
