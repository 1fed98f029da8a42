"""Pretraining text about folders of files: listings, definitions in files, and numbered commands.

A page of a made-up repository::

    # Current working directory
    core/
    # Files under current working directory
    hub.py
    token_cache.py
    core/hub.py defines the class Hub: Reads events.
    Which file defines the class Hub?                       core/hub.py
    0. cd ..
    1. cat hub.py
    What is 1?                                              cat hub.py
"""

from random import Random

from selfimprove.envs.passages import Passage

_WORDS = (
    "array", "base", "cache", "client", "color", "config", "context", "core", "data", "date", "error", "event",
    "export", "field", "file", "filter", "format", "graph", "group", "handler", "hub", "image", "index", "input",
    "json", "key", "layer", "line", "list", "loader", "log", "main", "map", "model", "name", "node", "number",
    "option", "output", "page", "panel", "parser", "path", "plot", "plugin", "pool", "queue", "reader", "request",
    "response", "rule", "schema", "server", "session", "setup", "shape", "signal", "source", "state", "store",
    "stream", "string", "style", "table", "task", "text", "theme", "time", "token", "tool", "tree", "type", "user",
    "util", "value", "version", "view", "widget", "window", "worker", "writer",
)  # fmt: skip
_VERBS = (
    "add", "apply", "build", "check", "clear", "close", "copy", "count", "create", "delete", "draw", "find", "get",
    "join", "load", "make", "merge", "open", "parse", "print", "read", "remove", "run", "save", "send", "set", "sort",
    "split", "start", "stop", "update", "write",
)  # fmt: skip
_SUFFIXES = (".py", ".py", ".py", ".md", ".json", ".yaml", ".txt", ".sh", ".csv")
_KINDS = ("class", "function", "section", "key")
_ASKS = {
    "class": "Which file defines the class {}?",
    "function": "Which file defines the function {}?",
    "section": "Which file has the section {}?",
    "key": "Which file sets {}?",
}
_SAYS = {
    "class": "{} defines the class {}.",
    "function": "{} defines the function {}.",
    "section": "{} has the section {}.",
    "key": "{} sets {}.",
}


def folder(draws: Random) -> list[Passage]:
    """A folder's listing, numbered commands, the contents of its files, and questions about them."""
    here = draws.choice(["", *draws.sample(_WORDS, 3)])
    names = sorted({_file(draws) if draws.random() < 0.7 else draws.choice(_WORDS) for _ in range(draws.randint(2, 7))})
    commands = ["cd .."] if here else []
    for name in names:
        commands += [f"cat {name}", f"id {name}"] if "." in name else [f"cd {name}"]
    place = f"{here}/" if here else ""
    listing = "\n".join(names)
    numbered = "\n".join(f"{label}. {text}" for label, text in enumerate(commands))
    page = [
        Passage(f"# Current working directory\n{place}\n\n# Files under current working directory\n{listing}"),
        Passage(f"# Choose from below your command\n{numbered}"),
    ]
    held = {}
    for name in names:
        if "." in name:
            kind = draws.choice(_KINDS)
            held[name] = (kind, _thing(draws, kind))
            page.append(Passage(_SAYS[kind].format(place + name, held[name][1])))
    for _ in range(draws.randint(4, 8)):
        label = draws.randrange(len(commands))
        kind, thing = draws.choice([("", "")] if not held else list(held.values()))
        asked = [
            Passage(f"What is {label}?", commands[label], "lookup"),
            Passage(f"Which label has {commands[label]}?", str(label), "lookup"),
        ]
        if held:
            file = next(name for name, fact in held.items() if fact == (kind, thing))
            asked.append(Passage(_ASKS[kind].format(thing), place + file, "lookup"))
        page.append(draws.choice(asked))
    return page


def _file(draws: Random) -> str:
    return "_".join(draws.sample(_WORDS, draws.choice((1, 1, 2)))) + draws.choice(_SUFFIXES)


def _thing(draws: Random, kind: str) -> str:
    if kind == "function":
        return f"{draws.choice(_VERBS)}_{draws.choice(_WORDS)}"
    words = draws.sample(_WORDS, 2)
    return "_".join(words) if kind == "key" else "".join(word.capitalize() for word in words)
