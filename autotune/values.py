"""`dataclass` as the standard library has it, but frozen classes are made in a quarter of the time: there are hundreds, and a fifth of what a short command took was to make
them.

The standard library compiles six methods for each class. Here `__init__` alone is compiled, and the others are closures over the names of the fields. Classes that are not
frozen, that inherit from a dataclass, or that ask for more than `slots` and `kw_only`, are made by the standard library.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

_KNOWN = {"frozen", "slots", "kw_only"}
_ABSENT: Any = object()
"""stands in a call for a field that a factory fills"""


def _made(cls: type[Any], options: dict[str, Any]) -> type[Any]:
    inherits = any(hasattr(base, "__dataclass_fields__") for base in cls.__mro__[1:])
    if inherits or not options.get("frozen") or options.keys() - _KNOWN:
        return dataclasses.dataclass(**options)(cls)
    own_hash = cls.__dict__.get("__hash__")
    plain = {name: value for name, value in options.items() if name != "frozen"}
    cls = dataclasses.dataclass(init=False, repr=False, eq=False, **plain)(cls)
    fields = dataclasses.fields(cls)
    names = frozenset(field.name for field in fields)
    methods: dict[str, Any] = {
        "__init__": _init(cls, fields),
        "__repr__": _repr([field.name for field in fields if field.repr]),
        "__eq__": _eq(_values(field.name for field in fields if field.compare)),
    }
    if "__slots__" in cls.__dict__:
        methods |= {"__getstate__": _getstate, "__setstate__": _setstate}
    for name, method in methods.items():
        if name not in cls.__dict__:
            setattr(cls, name, method)
    if own_hash is None:
        hashed = (field.name for field in fields if (field.compare if field.hash is None else field.hash))
        setattr(cls, "__hash__", _hash(_values(hashed)))  # noqa: B010  # as a method, which an assignment is not for a type checker
    cls.__setattr__, cls.__delattr__ = _frozen(cls, names)
    for name in ("init", "repr", "eq", "frozen"):
        setattr(cls.__dataclass_params__, name, True)
    return cls


def _init(cls: type[Any], fields: tuple[dataclasses.Field[Any], ...]) -> Callable[..., None]:
    """The method that sets the fields and then calls `__post_init__`, where there is one."""
    known: dict[str, Any] = {"set_": object.__setattr__, "absent_": _ABSENT}
    words, body = ["self"], []
    for field in sorted(fields, key=lambda field: bool(field.kw_only)):
        if field.kw_only and "*" not in words:
            words.append("*")
        name, value = field.name, field.name
        if field.default is not dataclasses.MISSING:
            known[f"default_{name}_"] = field.default
            words.append(f"{name}=default_{name}_")
        elif field.default_factory is not dataclasses.MISSING:
            known[f"make_{name}_"] = field.default_factory
            words.append(f"{name}=absent_")
            value = f"make_{name}_() if {name} is absent_ else {name}"
        else:
            words.append(name)
        body.append(f"  set_(self, {name!r}, {value})")
    if hasattr(cls, "__post_init__"):
        body.append("  self.__post_init__()")
    text = f"def make({', '.join(known)}):\n def __init__({', '.join(words)}):\n{chr(10).join(body) or '  pass'}\n return __init__"
    space: dict[str, Any] = {}
    exec(text, {}, space)  # names of fields alone, as the standard library does
    init: Callable[..., None] = space["make"](**known)
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    init.__annotations__ = {**{field.name: field.type for field in fields}, "return": None}
    return init


def _values(names: Any) -> Callable[[Any], tuple[Any, ...]]:
    """What fetches these fields of an object as a tuple."""
    listed = tuple(names)
    if len(listed) > 1:
        return attrgetter(*listed)
    return lambda own: tuple(getattr(own, name) for name in listed)


def _repr(names: list[str]) -> Callable[[Any], str]:
    @recursive_repr()
    def repr_(self: Any) -> str:
        return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    return repr_


def _eq(values: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any, object], Any]:
    def eq_(self: Any, other: object) -> Any:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    return eq_


def _hash(values: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any], int]:
    def hash_(self: Any) -> int:
        return hash(values(self))

    return hash_


def _frozen(cls: type[Any], names: frozenset[str]) -> tuple[Callable[..., None], Callable[..., None]]:
    def setattr_(self: Any, name: str, value: Any) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def delattr_(self: Any, name: str) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    return setattr_, delattr_


def _getstate(self: Any) -> list[Any]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _setstate(self: Any, state: list[Any]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)


if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(cls=None, /, **options):
        """As `dataclasses.dataclass`."""
        return (lambda made: _made(made, options)) if cls is None else _made(cls, options)


__all__ = ["dataclass"]
