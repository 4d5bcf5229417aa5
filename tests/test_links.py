"""Links in the pages: files, headings and, where a link's text is a name in code, what the file defines."""

import re
from pathlib import Path

import pytest

from plstm.studies.documents import document_paths
from tests.commands import ROOT

LINK = re.compile(r"\[([^\[\]]*)\]\(([^()\s]+)\)")
PAGES = [*document_paths(ROOT), ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]


def headings(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def problem(page: Path, text: str, target: str) -> str | None:
    """What is wrong with a link."""
    path, _, anchor = target.partition("#")
    file = page.parent / path if path else page
    if not file.exists():
        return "no such file"
    if anchor and anchor not in headings(file):
        return "no such heading"
    name = re.fullmatch(r"`(\w+)`", text)
    if name and file.suffix == ".py" and not re.search(rf"^(def|class) {name[1]}\b", file.read_text(), re.MULTILINE):
        return f"does not define {name[1]}"
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_what_they_name(page):
    links = [link for link in LINK.findall(page.read_text(encoding="utf-8")) if not link[1].startswith("http")]
    assert [(link, wrong) for link in links if (wrong := problem(page, *link))] == []


@pytest.mark.parametrize("link", ["[a](b.md)", "[a](README.md#nothing)", "[`absent`](train.py)"])
def test_a_link_to_nothing_is_found(link):
    assert problem(ROOT / "README.md", *LINK.findall(link)[0])


def test_the_appendix_has_every_equation_of_plstm():
    rows = re.findall(r"^\| ([\d,– ]+) \|", (ROOT / "docs/appendix.md").read_text(encoding="utf-8"), re.MULTILINE)
    found = []
    for numbers in ", ".join(rows).split(", "):
        first, _, last = numbers.partition("–")
        found += range(int(first), int(last or first) + 1)
    assert found == list(range(1, 39))
