"""How Sphinx builds the site: `sphinx-build -W -c docs . build/site`, then open build/site/index.html.

The source is the whole repository, so that a link leads to the same file on the site and where the
Markdown itself is read.
"""

project = "dtrain"
author = "the authors of dtrain"
extensions = ["myst_parser", "sphinx_copybutton", "sphinx_design"]
source_suffix = {".md": "markdown"}
root_doc = "docs/index"
include_patterns = ["*.md", "docs/**/*.md", "docs/*.md", "benchmarks/README.md"]
exclude_patterns = ["build", ".*", "**/.*"]
html_theme = "furo"
html_title = "dtrain"
html_additional_pages = {"index": "redirect.html"}
templates_path = ["_templates"]
html_static_path = ["_static"]
html_copy_source = False
html_show_copyright = False
myst_heading_anchors = 6
myst_enable_extensions = ["colon_fence"]
copybutton_prompt_text = r"^[\w-]*\$ "
copybutton_prompt_is_regexp = True
suppress_warnings: list[str] = []
