"""`KvzeroError`, the root of all errors: a rule, and the facts that broke it."""

from __future__ import annotations


class KvzeroError(Exception):
    """A rule of kvzero was broken; `rule` names it, `facts` holds the numbers.

    A subclass states its `rule` and a `template`; the facts fill the template and become attributes.

    Example:
        >>> from kvzero import errors
        >>> error = errors.NoBlocksError(where="pool.json", num_blocks=0)
        >>> error.rule, error.num_blocks
        ('no-blocks', 0)
    """

    rule = "kvzero"
    template = "{detail}"

    def __init__(self, **facts: object) -> None:
        self.facts = facts
        for name, value in facts.items():
            setattr(self, name, value)
        super().__init__(_one_line(self.template.format(**facts)))

    def __reduce__(self) -> tuple:
        # Exceptions cross process borders in the audit; the default would drop the keyword facts.
        return _rebuild, (type(self), self.facts)

    def to_dict(self) -> dict[str, object]:
        """The rule, the message and every fact, as plain data for JSON."""
        return {"rule": self.rule, "message": str(self), **self.facts}


def _one_line(message: str, limit: int = 800) -> str:
    """A message stays one line and readable, whatever the file that it quotes holds."""
    message = "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in message
    )
    return message if len(message) <= limit else f"{message[: limit - 200]} ... {message[-200:]}"


def _rebuild(kind: type[KvzeroError], facts: dict[str, object]) -> KvzeroError:
    return kind(**facts)
