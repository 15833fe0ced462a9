"""What the site adds to `docs/`: the pages that live elsewhere in the repository, and links that fit both places.

On a code host, README.md and the pages in `docs/` link to files by their place in the repository. The site has the
pages alone, so a link to a page is turned into one to its place on the site, and a link to any other file into the
file's name.
"""

import posixpath
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page


ROOT = Path(__file__).resolve().parent.parent
BROUGHT_IN = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "model_cards/egrm-mini.md": "egrm_mini.md",
}
"""File of the repository -> page of the site."""

_tree: tempfile.TemporaryDirectory | None = None
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")
_FRONT_MATTER = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)


@event_priority(100)  # before the plugin reads its settings
def on_config(config: Any) -> Any:
    """Lay the package out as a wheel does, for the reader of docstrings, which follows no link.

    Args:
        config: The site's settings; the place of the package is entered.
    """
    global _tree
    _tree = tempfile.TemporaryDirectory(prefix="egrm_docs_")
    package, only_python = Path(_tree.name) / "transformers_egrm", shutil.ignore_patterns("checkpoints", "modeling")
    shutil.copytree(ROOT / "transformers_egrm", package, ignore=only_python)
    shutil.copytree(ROOT / "modeling", package / "modeling")
    (package / "modeling" / "__init__.py").touch()
    config.plugins["mkdocstrings"].config.handlers["python"]["paths"] = [_tree.name]
    return config


def on_post_build(**_: Any) -> None:
    """Remove that copy."""
    if _tree is not None:
        _tree.cleanup()


def on_files(files: Files, config: Any) -> Files:
    """Add the pages from outside `docs/`."""
    for source, target in BROUGHT_IN.items():
        text = _FRONT_MATTER.sub("", (ROOT / source).read_text("utf-8"))
        files.append(File.generated(config, target, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Rewrite a page's links into the repository."""
    place = page.file.src_uri
    source = {target: source for source, target in BROUGHT_IN.items()}.get(place, f"docs/{place}")
    return _LINK.sub(lambda link: site_link(link, source, place), markdown)


def site_link(link: re.Match[str], source: str, place: str) -> str:
    """One link as the site needs it.

    Args:
        link: A match of text, path and, optionally, anchor.
        source: The file of the repository that the page is.
        place: The page's place on the site.
    """
    text, path, anchor = link[1], link[2], link[3] or ""
    target = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    page = BROUGHT_IN.get(target) or (target.removeprefix("docs/") if target.startswith("docs/") else None)
    if page is None:
        return text
    return f"[{text}]({posixpath.relpath(page, posixpath.dirname(place) or '.')}{anchor})"
