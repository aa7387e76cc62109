"""The documentation site: pages in MyST Markdown, the reference from docstrings. It is built without a network."""

import inspect
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from docutils.nodes import Node
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

sys.path.insert(0, str(Path(__file__).parent))

from docstrings import restructure

from privopt import __version__

project = "privopt"
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]

myst_heading_anchors = 3  # links to headings, as GitHub makes them

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 90
toc_object_entries_show_parents = "hide"

html_theme = "sphinx_book_theme"
html_title = f"privopt {version}"
html_static_path = ["_static"]
html_css_files = ["privopt.css"]
html_copy_source = False
html_show_copyright = False
html_theme_options = {
    "navbar_persistent": [],  # the side bar has a search field
    "show_navbar_depth": 1,
    "show_toc_level": 2,
    "use_download_button": False,
    "use_fullscreen_button": False,
}


class ModuleContents(SphinxDirective):
    """`module-contents:: NAME` documents a module, and the classes and functions that it or a module inside it defines."""

    required_arguments = 1

    def run(self) -> list[Node]:
        module = import_module(self.arguments[0])
        lines = [f".. automodule:: {module.__name__}", ""]
        for name, thing in vars(module).items():
            inside = f"{getattr(thing, '__module__', '')}.".startswith(f"{module.__name__}.")
            if name.startswith("_") or not inside:
                continue
            if inspect.isclass(thing):
                lines += [f".. autoclass:: {module.__name__}.{name}", "   :members:", ""]
            elif inspect.isfunction(thing):
                lines += [f".. autofunction:: {module.__name__}.{name}", ""]
        return self.parse_text_to_nodes("\n".join(lines))


def setup(app: Sphinx) -> None:
    """Add the directive, and connect what is done to each docstring, signature and member."""
    app.add_directive("module-contents", ModuleContents)
    app.connect("autodoc-process-docstring", _translate)
    app.connect("autodoc-process-signature", _shorten)
    app.connect("autodoc-skip-member", _skip)


def _translate(app: Sphinx, what: str, name: str, obj: object, options: Any, lines: list[str]) -> None:
    lines[:] = list(restructure(lines))


def _shorten(app: Sphinx, what: str, name: str, obj: object, options: Any, arguments: str | None, result: str | None) -> Any:
    """Show arrays without their types of shape and number. Nobody calls a protocol, so it has no arguments."""
    if getattr(obj, "_is_protocol", False):
        return "", ""
    return tuple(
        text and re.sub(r"ndarray\[tuple\[.*?\], ~?(?:numpy\.)?dtype\[.*?\]\]", "ndarray", text) for text in (arguments, result)
    )


def _skip(app: Sphinx, what: str, name: str, obj: object, skip: bool, options: Any) -> bool | None:
    """Leave out what others document: scikit-learn's metadata routing, the fields of named tuples."""
    generated = re.fullmatch("[gs]et_.*(request|routing)", name) or (obj.__doc__ or "").startswith("Alias for field number")
    return True if generated else None
