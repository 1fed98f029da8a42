"""The commands of AutoExplore: cd, ls, cat, head, tail and id, as functions over a read-only tree.

    >>> sandbox = Sandbox(View(Tree.scan("repo")))
    >>> sandbox.run(["cd", "src"]).text
    'Success: Now at src'
    >>> sandbox.run(["cat", "../../etc/passwd"]).text
    'Error: You cannot access file ../etc/passwd outside the repo! You are now at src'

Guarantees, for any list of arguments and any folder (docs/reflect-rl.md, L35):

- Nothing is executed. There is no shell; ``;``, ``$()``, ``|``, ``>``, ``~``, quotes, blanks, newlines and leading
  dashes in an argument are characters of a name. The only option is ``-n N`` of head and tail.
- Nothing is written, and no process-wide state is used: the working directory is a field of the sandbox, so any number
  of sandboxes can run in one process, also in several threads.
- Nothing outside the tree is read. Operands are looked up in the tree's listing, which excludes links that lead
  outside; ``..`` above the root and absolute paths elsewhere are refused. A file is opened folder by folder without
  following links, so this also holds if the folder changes in the meantime.
- It always answers: FIFOs, devices and sockets are never opened; at most ``TAIL_LIMIT`` bytes of a file are read;
  every answer is bounded; undecodable bytes and characters that move a terminal's cursor are shown as U+FFFD.
- An answer starts with Success and the output, or Error and the reason; the root's location on the machine is hidden. A
  failed command changes nothing.

Limits: it cannot distinguish hard links and mounted folders inside the tree from the tree's own files; a network folder
may be slow; the operating system may record access times; files added after the listing do not exist here. Nothing
*inside* the tree is hidden: keep secrets out of the folders that you let a model explore.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from selfimprove.envs.autoexplore.tree import Entry, View, join
from selfimprove.envs.autoexplore.truncation import truncate

COMMANDS = ("cd", "ls", "cat", "head", "tail", "id")

READ_LIMIT = 64 * 1024  # bytes of a file that a command reads: more than is ever shown
TAIL_LIMIT = 4 * READ_LIMIT  # the same for tail, which may be asked for more lines than are shown
LIST_LIMIT = 1000  # names that ls shows
SHOWN_LIMIT = 300  # characters of an operand repeated in an answer
DEFAULT_LINES = 10  # of head and tail

_NUMBER = re.compile(r"[0-9]{1,9}", re.ASCII)
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Result(NamedTuple):
    """A result. ``text`` begins with Success or Error; ``identified``: the path given to ``id``, else None."""

    ok: bool
    text: str
    identified: str | None = None


class _Refused(Exception):
    """The command cannot be executed; the text is the reason."""


class _Outside(_Refused):
    """The operand leads out of the tree."""


class Sandbox:
    """One episode's position in a tree. ``cwd``: the working directory, relative to the root, "" at the root."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.cwd = ""

    def run(self, argv: Sequence[str]) -> Result:
        """Run one command, given as its name and operands; never raises for an operand.

        Operands are literal; one that does not exist is tried again without surrounding quotes.
        """
        try:
            result = self._run(list(argv))
        except _Refused as refusal:
            result = Result(False, f"Error: {refusal}")
        except OSError as error:  # the file has changed or is not readable
            result = Result(False, f"Error: {error.strerror or 'can not be read'}")
        return result._replace(text=self.view.tree.hide_root(result.text))

    def _run(self, argv: list[str]) -> Result:
        if not argv or argv[0] not in COMMANDS:
            raise _Refused(f"You can only use {', '.join(COMMANDS)}.")
        name, operands = argv[0], argv[1:]
        lines: int | None = None
        if name in ("head", "tail"):
            lines = DEFAULT_LINES
            if len(operands) == 3 and operands[0] == "-n":
                if not _NUMBER.fullmatch(operands[1]):
                    raise _Refused(f"{name}: invalid number of lines: {shown(operands[1])}")
                lines, operands = int(operands[1]), operands[2:]
        if name == "ls" and not operands:
            operands = [""]
        elif len(operands) != 1:
            wants = {"ls": "at most one path", "head": "[-n N] and one path", "tail": "[-n N] and one path"}
            raise _Refused(f"{name}: takes {wants.get(name, 'exactly one path')}")
        if name == "cd":
            return self._cd(operands[0])
        if name == "id":
            return self._id(operands[0])
        if name == "ls":
            return self._ls(operands[0])
        return self._show(name, operands[0], lines)

    def _cd(self, operand: str) -> Result:
        path, entry = self._find("cd", operand, f"[Errno 2] No such file or directory: '{shown(operand)}'")
        if entry.kind != "dir":
            raise _Refused(f"[Errno 20] Not a directory: '{shown(operand)}'")
        self.cwd = path
        return Result(True, f"Success: Now at {shown(path or '.')}")

    def _ls(self, operand: str) -> Result:
        missing = f"ls: cannot access '{shown(operand)}': No such file or directory"
        path, entry = self._find("ls", operand or ".", missing)
        names = list(self.view.entries(path)) if entry.kind == "dir" else [unquoted(operand)]
        text = "\n".join(f"'{shown(name)}'" for name in names[:LIST_LIMIT])
        if len(names) > LIST_LIMIT:
            text += f"\n...\nLarge folder, only display first {LIST_LIMIT} of {len(names)} entries."
        return Result(True, "Success: The result of ls is:\n" + text)

    def _show(self, name: str, operand: str, lines: int | None) -> Result:
        """cat, head and tail; ``lines``: number of lines (None: all). Line ends become newlines."""
        opening = f"cannot open '{shown(operand)}' for reading" if name != "cat" else shown(operand)
        path, entry = self._find(name, operand, f"{name}: {opening}: No such file or directory")
        if entry.kind == "dir":
            reading = f"error reading '{shown(operand)}'" if name != "cat" else shown(operand)
            raise _Refused(f"{name}: {reading}: Is a directory")
        if entry.kind != "file":
            raise _Refused(f"{name}: {shown(operand)}: Not a regular file")
        data, complete = self._read(path, name)
        decoded = data.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")
        content = self.view.tree.hide_root(decoded)  # before cutting, which could leave a part of the root's path
        if lines is not None:
            there = _lines(content)
            asked = there[:lines] if name == "head" else there[max(0, len(there) - lines) :]
            complete = complete or len(asked) < len(there)  # all requested lines are there
            content = "".join(asked)
        body = _UNPRINTABLE.sub("\ufffd", truncate(path, content, complete))
        return Result(True, f"Success: The content of {quoted(shown(unquoted(operand)))} is:\n{body}")

    def _read(self, path: str, name: str) -> tuple[bytes, bool]:
        if name == "tail":
            return self.view.tree.read(path, TAIL_LIMIT, tail=True)
        return self.view.tree.read(path, READ_LIMIT)

    def _id(self, operand: str) -> Result:
        missing = f"{shown(operand)} does not exist!"
        path, entry = self._find("id", operand, missing)
        if entry.kind != "file":
            raise _Refused(missing)
        return Result(True, f"Success: Identified file {shown(path)}", identified=path)

    def _find(self, command: str, operand: str, missing: str) -> tuple[str, Entry]:
        """The canonical path and entry of an operand. Raises ``_Refused`` with ``missing`` if there is none."""
        for name in dict.fromkeys((operand, unquoted(operand))):
            try:
                found = self._walk(name)
            except _Outside:
                where = shown(self._relative(name))
                raise _Refused(
                    f"You cannot access file {where} outside the repo! You are now at {shown(self.cwd or '.')}"
                ) from None
            if found:
                return found
        raise _Refused(missing)

    def _walk(self, operand: str) -> tuple[str, Entry] | None:
        """Resolve a path part by part, as the operating system does; None if it does not exist."""
        place = self.cwd
        if operand.startswith("/"):
            below = self.view.tree.below_root(operand)
            if below is None:
                raise _Outside
            operand, place = below or ".", ""
        if not operand:
            return None
        entry = Entry("dir")
        for part in operand.split("/"):
            if entry.kind != "dir":
                return None  # a file has nothing below it
            if part in ("", "."):
                continue
            if part == "..":
                if not place:
                    raise _Outside
                place = place.rpartition("/")[0]
                continue
            found = self.view.entries(place).get(part)
            if found is None:
                return None
            place, entry = join(place, part), found
            if entry.kind == "link":
                place, entry = self._linked(place, entry)
        return place, entry

    def _linked(self, path: str, link: Entry) -> tuple[str, Entry]:
        """The target of a link, if this view shows it. The target is free of links, or was changed and is refused."""
        place, entry = "", Entry("dir")
        for part in link.target.split("/") if link.target else ():
            found = self.view.entries(place).get(part)
            if found is None or found.kind == "link":
                raise _Refused(f"{shown(path)}: No such file or directory")
            place, entry = join(place, part), found
        return place, entry

    def _relative(self, operand: str) -> str:
        """A refused path relative to the root; an absolute one unchanged, which reveals nothing new."""
        if operand.startswith("/"):
            return operand
        parts: list[str] = self.cwd.split("/") if self.cwd else []
        for part in operand.split("/"):
            if part == ".." and parts and parts[-1] != "..":
                parts.pop()
            elif part not in ("", "."):
                parts.append(part)
        return "/".join(parts) or "."


def shown(name: str) -> str:
    """A name or operand on one line: unprintable characters are escaped, long texts are shortened."""
    short = name if len(name) <= SHOWN_LIMIT else name[:SHOWN_LIMIT] + "..."
    if short.isprintable():
        return short
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in short)


def quoted(name: str) -> str:
    """A name in the commands' format: in double quotes if it has a space."""
    return f'"{name}"' if " " in name else name


def unquoted(name: str) -> str:
    """A path without any quotes around it or around its parts; the original never matches such paths.

    In ``"my dir"/"my file.txt"`` each part has its own quotes: the outer ones are not a pair.
    """
    while len(name) > 1 and name[0] in "'\"" and name[0] == name[-1] and f"{name[0]}/" not in name[1:]:
        name = name[1:-1]
    return "/".join(unquoted(part) for part in name.split("/")) if "/" in name else name


def _lines(text: str) -> list[str]:
    """Lines with their newlines; only a newline ends a line."""
    parts = text.split("\n")
    return [part + "\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])
