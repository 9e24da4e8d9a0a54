"""Hints, solutions and the answers of quizzes: on the screen they are folded, in print they move to the end.

There they do not spoil an exercise, and a teacher can leave out their pages.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from bs4 import BeautifulSoup, Tag
from bs4.element import PageElement

from tools.print_page import Chapter, element, opened, page_number, summary_of, text_of

QUESTION = re.compile(r"(\d+)\.\s")


@dataclass(frozen=True, eq=False)
class Appendix:
    """A page at the end, filled while the chapters are gone through."""

    anchor: str
    article: Tag
    soup: BeautifulSoup

    @classmethod
    def named(cls, soup: BeautifulSoup, title: str, lead: str) -> "Appendix":
        """An empty one with a title and a first sentence."""
        anchor = f"appendix-{title.split()[0].lower()}"
        article = soup.new_tag("article", attrs={"class": "bd-article", "id": anchor})
        article.append(element(soup, "h1", title))
        article.append(element(soup, "p", lead))
        return cls(anchor, article, soup)

    def add(self, chapter: Chapter, name: str, origin: str, blocks: list[Tag]) -> Tag:
        """Put an exercise or question under its chapter, with the way back; return the link to it."""
        entry = self.soup.new_tag("section", attrs={"id": f"{self.anchor}--{origin}"})
        heading = element(self.soup, "h3", f"{name} ")
        heading.append(_link(self.soup, origin, "page "))
        entry.append(heading)
        entry.extend(blocks)
        self._section(chapter).append(entry)
        return _link(self.soup, str(entry["id"]), f"{text_of(self.article.h1 or entry)}, page ")

    def _section(self, chapter: Chapter) -> Tag:
        """The section for a chapter, made when it is first needed."""
        anchor = f"{self.anchor}--{chapter.anchor}"
        found = self.article.find(id=anchor)
        if isinstance(found, Tag):
            return found
        section = self.soup.new_tag("section", attrs={"id": anchor})
        section.append(element(self.soup, "h2", chapter.title))
        self.article.append(section)
        return section


def _link(soup: BeautifulSoup, anchor: str, text: str) -> Tag:
    """A link within the document that ends in the page it leads to."""
    link = soup.new_tag("a", attrs={"href": f"#{anchor}", "class": "internal pointer"})
    link.append(text)
    link.append(page_number(soup, anchor))
    return link


def _pointers(soup: BeautifulSoup, links: list[Tag]) -> Tag:
    """The line that says where help is."""
    line = soup.new_tag("p", attrs={"class": "pointers"})
    for link in links:
        line.extend([link, ". "])
    return line


def move_exercise_help(chapter: Chapter, hints: Appendix, solutions: Appendix) -> None:
    """Move what helps with an exercise to the end, and say in the exercise where it stands."""
    for exercise in chapter.article.select("div.exercise[id]"):
        title = exercise.select_one(".admonition-title")
        name = text_of(title) if title else "Exercise"
        folded = [tag.extract() for tag in exercise.select("details.sd-dropdown")]
        blocks = [opened(hints.soup, tag) for tag in folded]
        first = [block for block in blocks if text_of(block).startswith("Hint")]
        rest = [block for block in blocks if block not in first]
        rest.extend(_solutions_to(exercise, chapter, solutions.soup))
        links = [
            appendix.add(chapter, name, str(exercise["id"]), found)
            for appendix, found in ((hints, first), (solutions, rest))
            if found
        ]
        if links:
            exercise.append(_pointers(hints.soup, links))


def _solutions_to(exercise: Tag, chapter: Chapter, soup: BeautifulSoup) -> Iterator[Tag]:
    """Take the solutions of an exercise out of its chapter."""
    for solution in chapter.article.select("div.solution"):
        title = solution.select_one(".admonition-title")
        if title is not None and title.select_one(f'a[href="#{exercise["id"]}"]') is not None:
            title.replace_with(element(soup, "p", "Solution", **{"class": "opened-title"}))
            solution["class"] = "opened"
            yield solution.extract()


def move_answers(chapter: Chapter, solutions: Appendix) -> None:
    """Print the choices of each quiz question as a list, and move what is to be said about them to the end.

    A question is a paragraph in bold that begins with its number, followed by a dropdown for each choice.
    """
    soup = solutions.soup
    for question in chapter.article.select("p:has(> strong:only-child)"):
        number = QUESTION.match(text_of(question))
        choices = list(_dropdowns_after(question))
        if number is None or len(choices) < 2:
            continue
        question["id"] = f"{chapter.anchor}--question-{number[1]}"
        listed = _lettered(soup, [summary_of(choice) for choice in choices])
        answers = _lettered(soup, [list(choice.children) for choice in choices])
        for choice in choices:
            choice.decompose()
        question.insert_after(listed)
        link = solutions.add(chapter, f"Question {number[1]}", str(question["id"]), [answers])
        listed.insert_after(_pointers(soup, [link]))


def _dropdowns_after(tag: Tag) -> Iterator[Tag]:
    """The dropdowns that follow directly, one after the other."""
    for sibling in tag.next_siblings:
        if isinstance(sibling, Tag):
            if sibling.name != "details":
                return
            yield sibling


def _lettered(soup: BeautifulSoup, items: list[list[PageElement]]) -> Tag:
    """A list with letters."""
    listed = soup.new_tag("ol", attrs={"class": "choices", "type": "a"})
    for contents in items:
        item = soup.new_tag("li")
        item.extend(contents)
        listed.append(item)
    return listed
