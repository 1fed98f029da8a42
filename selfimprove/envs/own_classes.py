"""What a user defines and names as ``package.module:name``: importing it, and creating objects of a class."""

import importlib
from typing import Any

from selfimprove.core.errors import UserError
from selfimprove.envs.contract import CheckedEnv, checked_members, raising
from selfimprove.envs.interface import AgentEnv


def make_own(name: str, needs: type, **options: Any) -> Any:
    """Create an instance of the class ``package.module:Class``, which reports its exceptions in one sentence.

    Raises:
        UserError: the class does not accept these options, or raises another exception.
    """
    with raising(name, "its constructor"):
        try:
            own = own_class(name, needs)(**options)
        except TypeError as error:
            raise UserError(f"{name} cannot be constructed with these options ({error}); fix options.") from error
    return CheckedEnv(name, own) if needs is AgentEnv else checked_members(name, own, members(needs))


def own_class(name: str, needs: type, key: str = "name") -> Any:
    """The class ``package.module:Class``.

    Raises:
        ValueError: it can't be imported, is not a class, or lacks members of the protocol ``needs``.
    """
    found = _imported(name, key)
    lacking = {member for member in members(needs) if not hasattr(found, member)}
    lacking |= getattr(found, "__abstractmethods__", frozenset())
    if lacking:
        raise ValueError(
            f"{key}: {name} lacks {', '.join(sorted(lacking))}; add what {needs.__name__} in {needs.__module__} "
            "requires"
        )
    return found


def nearness(name: str, needs: type) -> int:
    """The number of members of the protocol ``needs`` that a class has; 0 if it can't be imported."""
    try:
        found = _imported(name, "name")
    except ValueError:
        return 0
    return sum(hasattr(found, member) for member in members(needs))


def _imported(name: str, key: str) -> type:
    found = imported(name, key)
    if not isinstance(found, type):
        module, _, member = name.partition(":")
        raise ValueError(f"{key}: {module} has no class {member!r}; fix the name")
    return found


def imported(name: str, key: str) -> Any:
    """The member ``package.module:name``; None if the module has none.

    Raises:
        ValueError: the module, which the key names, can't be imported.
    """
    module, _, member = name.partition(":")
    try:
        return getattr(importlib.import_module(module), member, None)
    except Exception as error:  # a user's module may raise anything at import
        said = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(f"{key}: module {module!r} cannot be imported ({said}); fix it or the name") from None


def members(protocol: type) -> list[str]:
    """The names of a protocol's public members."""
    own = [base for base in protocol.__mro__ if base.__module__ == protocol.__module__]
    return sorted({name for base in own for name in vars(base) if not name.startswith("_")})
