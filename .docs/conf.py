"""The documentation: guides, methods, results and the API reference, by ``make docs``.

Pages that hold facts of the package or of the committed runs are written here, before
Sphinx reads them: the API (`reference`), the methods (`gallery`), and copies of
notebooks, pages of the study and the changelog (`copies`). Tables inside of guides come
from the directive of `tables`.
"""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import optax_matrix  # noqa: E402

project = "optax_matrix"
release = optax_matrix.__version__
extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "myst_nb",
    "sphinx_copybutton",
    "mathml",
    "signatures",
    "reference",
    "gallery",
    "chains",
    "copies",
    "tables",
    "progress",
    "whole",
]
exclude_patterns = ["_build", "jupyter_execute", "results/rates.md", "methods.md"]
nitpicky = True
nitpick_ignore_regex = [("py:class", ".*")]  # Types of other packages have no link.

nb_execution_mode = "off"  # They are committed as they ran.
myst_enable_extensions = ["dollarmath", "amsmath"]
myst_heading_anchors = 3
suppress_warnings = ["myst.header"]  # A page that is a part of another one.

copybutton_prompt_text = r">>> |\.\.\. "
copybutton_prompt_is_regexp = True

html_theme = "furo"
html_title = f"optax_matrix {release}"
html_math_renderer = "mathml"
html_static_path = ["static"]
html_css_files = ["docs.css"]
html_search_scorer = str(HERE / "static" / "scorer.js")
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
viewcode_line_numbers = True

default_role = "name"
add_module_names = False
autodoc_member_order = "bysource"
maximum_signature_line_length = 72
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
