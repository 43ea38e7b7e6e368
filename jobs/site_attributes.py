"""An extension of Griffe: the attributes that a class's docstring lists are described one by one.

The reference then has each under a heading of its own, which can be linked to, as methods have.
"""

from __future__ import annotations

from typing import Any

import griffe


class DescribedAttributes(griffe.Extension):
    """Give each attribute the line about it from the docstring of its class."""

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """Read the section ``Attributes`` of the class, if it has one."""
        if cls.docstring is None:
            return
        for section in cls.docstring.parse("google", warnings=False):
            if isinstance(section, griffe.DocstringSectionAttributes):
                for described in section.value:
                    member = cls.members.get(described.name)
                    if isinstance(member, griffe.Object) and member.docstring is None:
                        member.docstring = griffe.Docstring(described.description, parent=member)
