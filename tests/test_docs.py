"""README and docs/: short, true of commands and API, without dead links, and built as a site that is all local."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from pathlib import Path

import click
import pytest
import yaml

import grace_store
from grace_store.cli import main

REPOSITORY = Path(__file__).parent.parent
PAGES = sorted((REPOSITORY / "docs").glob("*.md"))
MARKDOWN = [
    *PAGES,
    *REPOSITORY.glob("*.md"),
    *(REPOSITORY / "jobs").glob("*/*.md"),
    *(REPOSITORY / "schemas").glob("*.md"),
]
CONFIG = REPOSITORY / "docs/site/mkdocs.yml"
COMMANDS = main.list_commands(click.Context(main))

_CODE = re.compile(r"^```.*?^```$|^    .*?$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_RUN = re.compile(r"^\s*(?:\$ )?grace-store ([a-z]+)\b((?:[^\n]*\\\n)*[^\n]*)", re.MULTILINE)
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")


def name_of(path: Path) -> str:
    return str(path.relative_to(REPOSITORY))


# ---------------------------------------------------------------- README and pages


def test_the_readme_is_short() -> None:
    assert (REPOSITORY / "README.md").stat().st_size <= 9000


def test_the_readme_has_every_extra_that_users_install() -> None:
    extras = set(tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    readme = (REPOSITORY / "README.md").read_text()
    assert not [extra for extra in extras - {"dev", "docs", "fuzz"} if f"`{extra}`" not in readme]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_in_the_readme_and_explained_in_docs(command: str) -> None:
    assert f"grace-store {command}" in (REPOSITORY / "README.md").read_text()
    assert f"`grace-store {command}" in (REPOSITORY / "docs/commands.md").read_text()
    elsewhere = [page for page in PAGES if page.name not in ("commands.md", "index.md")]
    assert any(f"grace-store {command}" in page.read_text() for page in elsewhere)


@pytest.mark.parametrize("page", [REPOSITORY / "README.md", *PAGES], ids=name_of)
def test_options_of_commands_that_are_shown_are_there(page: Path) -> None:
    shown = [(command, _OPTION.findall(rest.partition(" #")[0])) for command, rest in _RUN.findall(page.read_text())]
    unknown = [(command, option) for command, options in shown for option in options if option not in known(command)]
    assert not unknown


def known(command: str) -> set[str]:
    found = main.get_command(click.Context(main), command)
    assert found is not None, command
    return {"--help"}.union(*(each.opts + each.secondary_opts for each in found.params))


@pytest.mark.parametrize("page", MARKDOWN, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for link in _LINK.findall(_CODE.sub("", page.read_text())):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and mkdocs name them."""
    words = (re.sub(r"[^\w\s-]", "", heading.lower()) for heading in _HEADING.findall(page.read_text()))
    return {re.sub(r"\s+", "-", each.strip()) for each in words}


def test_every_page_is_in_the_sites_menu() -> None:
    menu = yaml.safe_load(CONFIG.read_text())["nav"]
    assert sorted(pages_in(menu)) == [page.name for page in PAGES]


def pages_in(menu: object) -> list[str]:
    if isinstance(menu, str):
        return [menu]
    parts = menu.values() if isinstance(menu, dict) else menu if isinstance(menu, list) else []
    return [page for part in parts for page in pages_in(part)]


# ---------------------------------------------------------------- the site


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(CONFIG), "-d", str(folder)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return folder


class Loads(HTMLParser):
    """Collects what a browser fetches to show a page; where a reader may click is not among it."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag != "a":
            self.found += [value for name, value in attrs if name in ("src", "href", "srcset", "data") and value]


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > len(PAGES)
    for page in pages:
        loads = Loads()
        loads.feed(page.read_text())
        assert not [url for url in loads.found if re.match(r"(https?:)?//", url)], page.name
    for style in site.rglob("*.css"):
        assert not re.search(r"@import|url\(['\"]?(https?:)?//", style.read_text()), style.name


def test_the_reference_has_every_public_name(site: Path) -> None:
    headings = re.findall(r"<h3 id=.*?</h3>", (site / "api.html").read_text(), re.DOTALL)
    names = {re.sub(r"<[^>]+>|&para;", "", heading).strip() for heading in headings}
    assert names == {name for name in grace_store.__all__ if not name.startswith("_")}


def test_the_site_has_every_commands_help(site: Path) -> None:
    page = (site / "commands.html").read_text()
    assert not [command for command in COMMANDS if f"Usage: grace-store {command} " not in page]
