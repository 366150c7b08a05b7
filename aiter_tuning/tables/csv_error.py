"""The one error that a file raises: what is wrong, and exactly where."""

from __future__ import annotations

import os


class CsvError(ValueError):
    """A file that cannot be read as it is.

    ``str()`` is ``file:line:column: what was found; what was expected; what to do``. ``line`` counts from 1 and
    ``column`` is the number of the cell in its line, from 1; both are None where they do not apply.
    """

    def __init__(
        self, path: str | os.PathLike[str], found: str, *, line: int | None = None, column: int | None = None
    ) -> None:
        super().__init__(path, found)
        self.path = os.fspath(path)
        self.found = found
        self.line = line
        self.column = column

    def __str__(self) -> str:
        place = [self.path, *(str(number) for number in (self.line, self.column) if number is not None)]
        return f"{':'.join(place)}: {self.found}"

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (self.path, self.found, self.line, self.column))


class ConflictMarkerError(CsvError):
    """A line that a version control system left behind, because two branches changed the same rows."""

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild_conflict, (self.path, self.found, self.line, self.column))


def _rebuild(path: str, found: str, line: int | None, column: int | None) -> CsvError:
    return CsvError(path, found, line=line, column=column)


def _rebuild_conflict(path: str, found: str, line: int | None, column: int | None) -> ConflictMarkerError:
    return ConflictMarkerError(path, found, line=line, column=column)
