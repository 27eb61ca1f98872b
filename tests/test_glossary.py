"""The glossary leads where it says: ordinary words, searched for in names and texts, find the files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "glossary.md"
FIRST = 5  # files by number of hits, as far as a reader looks

_SUFFIXES = {".py", ".md", ".cuh", ".c", ".h", ".ll", ".lark"}
_LINK = re.compile(r"\[[^\]]*\]\(([^)#]+)[^)]*\)")


def rows(heading: str) -> list[list[str]]:
    """The cells of the table under a heading."""
    section = DOCUMENT.read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2]
    lines = [line for line in section.partition("\n## ")[0].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def linked(cell: str) -> Path:
    found = _LINK.search(cell)
    assert found is not None, cell
    return (DOCUMENT.parent / found[1]).resolve()


def texts(*folders: str) -> dict[Path, str]:
    files = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    return {
        path: path.read_text(encoding="utf-8").lower()
        for path in files
        if path.suffix in _SUFFIXES and path != DOCUMENT
    }


TERMS, QUESTIONS = rows("Words that are ours"), rows("Questions of the first hour")
TEXTS = texts("taskc", "docs")


@pytest.mark.parametrize("term", TERMS, ids=lambda row: row[0])
def test_a_word_of_ours_is_in_the_file_that_defines_it(term: list[str]) -> None:
    words, _, file, _ = term
    text = TEXTS[linked(file)]
    for word in words.lower().split(", "):
        assert re.search(rf"\b{word}", text), f"{file} says nothing of {word}"


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda row: row[0])
def test_an_ordinary_search_finds_the_file(question: list[str]) -> None:
    """It has the word in its name, or is among the first files by lines that have it."""
    _, word, file = question
    word, wanted = word.strip("`").lower(), linked(file)
    hits = {
        path: sum(word in line for line in text.splitlines())
        for path, text in TEXTS.items()
        if word in text
    }
    assert wanted in hits, f"{wanted.name} doesn't say {word!r}"
    is_in_name = word.replace(" ", "_").replace("-", "_") in wanted.stem
    assert is_in_name or sorted(hits.values(), reverse=True)[:FIRST][-1] <= hits[wanted], hits


def test_every_link_leads_to_a_file() -> None:
    links = _LINK.findall(DOCUMENT.read_text(encoding="utf-8"))
    assert [link for link in links if not (DOCUMENT.parent / link).is_file()] == []
    assert len(links) >= len(TERMS) + len(QUESTIONS)
