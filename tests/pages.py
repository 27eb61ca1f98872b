"""A page of HTML as its elements: what it says, and that it is whole."""

from __future__ import annotations

from html.parser import HTMLParser

NAMESPACE = 'xmlns="http://www.w3.org/2000/svg"'  # a name, which nobody fetches


class Page(HTMLParser):
    """elements: name, attributes and the text inside, in order of their ends"""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[tuple[str, dict[str, str | None], list[str]]] = []
        self.elements: list[tuple[str, dict[str, str | None], str]] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        if name != "meta":
            self.open.append((name, dict(attributes), []))

    def handle_endtag(self, name: str) -> None:
        opened, attributes, inside = self.open.pop()
        assert opened == name
        self.elements.append((name, attributes, "".join(inside)))

    def handle_data(self, data: str) -> None:
        for _, _, inside in self.open:
            inside.append(data)

    def texts(self, name: str, **attributes: str) -> list[str]:
        return [text for _, _, text in self.found(name, **attributes)]

    def found(self, name: str, **attributes: str) -> list[tuple[str, dict[str, str | None], str]]:
        wanted = {key.rstrip("_"): value for key, value in attributes.items()}.items()
        return [item for item in self.elements if item[0] == name and wanted <= item[1].items()]

    @property
    def facts(self) -> dict[str, str]:
        return dict(zip(self.texts("dt"), self.texts("dd"), strict=True))

    def section(self, title: str) -> str:
        (text,) = [text for text in self.texts("section") if text.startswith(title)]
        return text
