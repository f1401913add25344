"""What mkdocs does not do by itself: files outside docs/ as pages, the API's reference, and the commands' help.

A link from a page to a file elsewhere in the repository works on GitHub as it stands. For the site that file becomes a
page too, or is copied if it is an image, and so does whatever that page links to.
"""

from __future__ import annotations

import inspect
import os
import posixpath
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

REPOSITORY = Path(__file__).resolve().parents[2]
DOCS = "docs"
OUTSIDE = "repository"
"""The site's folder for pages made from files outside docs/."""
IMAGES = (".png", ".svg", ".jpg")

_LINK = re.compile(r"(?<=\]\()([^)#\s]+)")
_FOLDER_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)#\s]+)\)")
_PACKAGE = """::: grace_store
    options:
      members: false
      show_root_heading: false
      show_root_toc_entry: false
"""
_CODE = re.compile(r"^```.*?^```|^    .*?$|`[^`\n]*`", re.MULTILINE | re.DOTALL)


# ---------------------------------------------------------------- files outside docs/


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add every file of the repository that a page links to, directly or through another."""
    pages = [f"{DOCS}/{file.src_uri}" for file in files.documentation_pages()]
    seen = {f"{DOCS}/{file.src_uri}" for file in files}
    while pages:
        page = pages.pop()
        for target in links_of(page):
            if target in seen or not (REPOSITORY / target).is_file():
                continue
            seen.add(target)
            files.append(_as_file(target, config))
            if target.endswith(".md"):
                pages.append(target)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fill in what is made from the code, and lead links to where the site has their files."""
    for marker, make in GENERATED.items():
        if marker in markdown:
            markdown = markdown.replace(marker, make())
    here = _repository_path(page.file.src_uri)
    markdown = _outside_code(_FOLDER_LINK, lambda found: _without_folder(found, here), markdown)
    return _outside_code(_LINK, lambda found: _site_link(found[0], here, page.file.src_uri), markdown)


def links_of(page: str) -> list[str]:
    """Return the repository's paths that a Markdown file links to, whether they exist or not."""
    text = _CODE.sub("", (REPOSITORY / page).read_text(encoding="utf-8"))
    return [target for link in _LINK.findall(text) if (target := resolve(page, link)) is not None]


def resolve(page: str, link: str) -> str | None:
    """Return the path in the repository that a link on a page means; None if it leads to another site."""
    return None if "://" in link or link.startswith("mailto:") else posixpath.normpath(f"{page}/../{link}")


def _as_file(target: str, config: MkDocsConfig) -> File:
    path, place = REPOSITORY / target, _site_path(target)
    if target.endswith(IMAGES):
        return File.generated(config, place, abs_src_path=str(path))
    text = path.read_text(encoding="utf-8")
    if not target.endswith(".md"):
        text = f"# {target}\n\n````{path.suffix.lstrip('.')}\n{text}\n````\n"
    return File.generated(config, place, content=text)


def _site_path(target: str) -> str:
    """Return where the site has a file of the repository."""
    if target.startswith(f"{DOCS}/"):
        return target.removeprefix(f"{DOCS}/")
    suffix = "" if target.endswith((".md", *IMAGES)) else ".md"
    return f"{OUTSIDE}/{target.lstrip('.')}{suffix}"


def _repository_path(src_uri: str) -> str:
    if not src_uri.startswith(f"{OUTSIDE}/"):
        return f"{DOCS}/{src_uri}"
    path = src_uri.removeprefix(f"{OUTSIDE}/")
    return path if (REPOSITORY / path).is_file() else path.removesuffix(".md")


def _without_folder(found: re.Match[str], page: str) -> str:
    """Return the words of a link to a folder, which the site has no page for."""
    target = resolve(page, found[2])
    if target is None or not (REPOSITORY / target).is_dir():
        return found[0]
    return f"{found[1]} (`{target}`)"


def _site_link(link: str, page: str, src_uri: str) -> str:
    target = resolve(page, link)
    if target is None or not (REPOSITORY / target).is_file():
        return link
    return posixpath.relpath(_site_path(target), posixpath.dirname(src_uri) or ".")


def _outside_code(pattern: re.Pattern[str], change: Callable[[re.Match[str]], str], text: str) -> str:
    """Apply a change to matches that are not in code."""
    out, at = [], 0
    for code in _CODE.finditer(text):
        out += [pattern.sub(change, text[at : code.start()]), code[0]]
        at = code.end()
    return "".join([*out, pattern.sub(change, text[at:])])


# ---------------------------------------------------------------- what is made from the code


def api_reference() -> str:
    """Return mkdocstrings' directives for the package and every public name of it, functions first."""
    sys.path.insert(0, str(REPOSITORY))
    import grace_store

    public = {name: getattr(grace_store, name) for name in grace_store.__all__ if not name.startswith("_")}
    functions = {name: thing for name, thing in public.items() if inspect.isroutine(thing)}
    classes = {name: thing for name, thing in public.items() if inspect.isclass(thing)}
    if others := public.keys() - functions.keys() - classes.keys():
        raise TypeError(f"public names that are neither functions nor classes: {', '.join(sorted(others))}")
    parts = ["## An example\n", _PACKAGE, "## Functions\n", *map(_directive, functions.items())]
    return "\n".join([*parts, "## Classes\n", *map(_directive, classes.items())])


def _directive(item: tuple[str, Any]) -> str:
    name, thing = item
    return (
        f"::: {thing.__module__}.{thing.__qualname__}\n    options:\n      heading: {name}\n      toc_label: {name}\n"
    )


def command_help() -> str:
    """Return the help of every command, as it prints it."""
    import click

    from grace_store.cli import main

    sections = []
    with click.Context(main, info_name="grace-store", max_content_width=100, terminal_width=100) as group:
        for name in main.list_commands(group):
            command = main.get_command(group, name)
            assert command is not None
            with click.Context(command, info_name=name, parent=group) as context:
                sections.append(f"### {name}\n\n```text\n{command.get_help(context)}\n```\n")
    return "\n".join(sections)


GENERATED = {"<!-- reference of grace_store.__all__ -->": api_reference, "<!-- help of every command -->": command_help}
"""What stands in a page, and what is put in its place."""

os.environ.setdefault("HF_HUB_OFFLINE", "1")
