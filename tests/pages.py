"""A strict reader of HTML pages, for tests: a page is well-formed, or reading it fails."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta", "link", "br", "hr", "img", "input"}


class Page(HTMLParser):
    """One page, read whole.

    Attributes:
        tags: Every tag that was opened, in order.
        attributes: Every (tag, name, value).
        tables: Cells' text by table, row and cell.
        text: All text outside of style, joined by spaces.
    """

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.tables: list[list[list[str]]] = []
        self._open: list[str] = []
        self._texts: list[str] = []
        self.feed(source)
        self.close()
        assert self._open == [], f"never closed: {self._open}"

    @property
    def text(self) -> str:
        """All that a reader sees, with single spaces."""
        return " ".join(" ".join(self._texts).split())

    def handle_starttag(self, tag, attrs):
        """Open a tag."""
        self.tags.append(tag)
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"{tag} has an attribute twice"
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self._open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in {"td", "th"}:
            self.tables[-1][-1].append("")

    def handle_startendtag(self, tag, attrs):
        """Open and close a tag, as SVG writes it."""
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag):
        """Close the tag that was opened last, and no other."""
        assert self._open, f"</{tag}> closes nothing"
        assert self._open[-1] == tag, f"</{tag}> closes <{self._open[-1]}>"
        self._open.pop()

    def handle_data(self, data):
        """Read text."""
        if self._open and self._open[-1] != "style":
            self._texts.append(data)
            if {"td", "th"} & set(self._open):
                row = self.tables[-1][-1]
                row[-1] = " ".join(f"{row[-1]} {data}".split())
