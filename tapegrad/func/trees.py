"""Trees of arguments and results: numbers and arrays in dicts, lists, tuples and dataclasses."""

from __future__ import annotations

import dataclasses
import functools
import reprlib
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from tapegrad.core.base import value_of
from tapegrad.core.grad_mode import in_force, no_grad
from tapegrad.tensor import Operand

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["Structure", "Tree", "flatten", "map_tree"]

Tree: TypeAlias = "Operand | Sequence[Tree] | Mapping[Hashable, Tree] | DataclassInstance | None"


@dataclasses.dataclass(frozen=True)
class Structure:
    """What a tree is without its leaves; equal structures have leaves in the same places.

    Attributes
    ----------
    kind
        The type of the node: a container, or None for a leaf.
    keys
        Keys of a dict, names of the fields of a dataclass; of other containers nothing.
    children
        Structures of what the node holds, in the order of the keys.
    """

    kind: Any
    keys: tuple[Any, ...]
    children: tuple[Structure, ...]

    def build(self, leaves: Sequence[Any]) -> Any:
        """Return a tree of this structure with other leaves, in the order that `flatten` gives them."""
        rest = iter(leaves)
        tree = self._take(rest)
        if next(rest, rest) is not rest:
            raise ValueError(f"{len(leaves)} leaves for a structure of {self.count()}")
        return tree

    def count(self) -> int:
        """Return the number of leaves."""
        return 1 if self.kind is None else sum(child.count() for child in self.children)

    def _take(self, rest: Iterator[Any]) -> Any:
        if self.kind is None:
            return next(rest)
        parts = [child._take(rest) for child in self.children]
        if self.kind is type(None):
            return None
        if self.kind in (dict, OrderedDict):
            return self.kind(zip(self.keys, parts, strict=True))
        if self.keys:
            return self.kind(**dict(zip(self.keys, parts, strict=True)))
        return self.kind(*parts) if hasattr(self.kind, "_fields") else self.kind(parts)


LEAF = Structure(None, (), ())
NUMBERS = (int, float, complex, np.generic, np.ndarray)


def flatten(tree: Any) -> tuple[list[Any], Structure]:
    """Return the leaves of a tree, and its structure.

    Containers are dict (in its own order; built again as dict or OrderedDict), list, tuple, named tuple and
    instances of dataclasses; None holds nothing. Anything else is a leaf.

    Examples
    --------
    >>> leaves, structure = flatten({"a": [1.0, 2.0], "b": (3.0, None)})
    >>> leaves
    [1.0, 2.0, 3.0]
    >>> structure.build([x * 10 for x in leaves])
    {'a': [10.0, 20.0], 'b': (30.0, None)}
    """
    leaves: list[Any] = []
    return leaves, _flatten(tree, leaves)


def _flatten(tree: Any, leaves: list[Any]) -> Structure:
    kind: Any = type(tree)
    keys: tuple[Any, ...] = ()
    parts: Sequence[Any] = ()
    if tree is None:
        pass
    elif isinstance(tree, dict):
        kind = OrderedDict if isinstance(tree, OrderedDict) else dict
        keys, parts = tuple(tree), tuple(tree.values())
    elif isinstance(tree, list | tuple):
        parts = tree
    elif dataclasses.is_dataclass(kind):
        keys = tuple(field.name for field in dataclasses.fields(tree) if field.init)
        parts = tuple(getattr(tree, name) for name in keys)
        _refuse_changed(tree, kind, dict(zip(keys, parts, strict=True)))
    else:
        leaves.append(tree)
        return LEAF
    return Structure(kind, keys, tuple(_flatten(part, leaves) for part in parts))


def _refuse_changed(tree: Any, kind: Any, given: dict[str, Any]) -> None:
    """Refuse an instance that its constructor would not make of its own fields: `build` calls it.

    Else a ``__post_init__`` that converts a field would do so twice, and what was set later would be lost.
    """
    fields = dataclasses.fields(tree)
    params = vars(kind).get("__dataclass_params__")  # a subclass may have a constructor of its own
    if (
        params is not None
        and params.init
        and not hasattr(kind, "__post_init__")
        and len(given) == len(fields)
    ):
        return
    if in_force("matcher") is not None:  # a program would see what is computed
        return
    with no_grad():
        again = kind(**given)
        for name in (field.name for field in fields):
            found, made = getattr(tree, name, None), getattr(again, name, None)
            if (name in given or isinstance(found, NUMBERS)) and not _is_same(found, made):
                raise TypeError(
                    f"{kind.__name__}.{name} is {reprlib.repr(found)}, and {reprlib.repr(made)} where the "
                    "constructor is given the fields as they are, as it will be with other numbers: "
                    "__post_init__ changes what it is given, or the field was set later; let a property or "
                    "another field hold what is computed, or pass the numbers in a dict"
                )


def _is_same(x: Any, y: Any) -> bool:
    """Whether two trees hold the same numbers; what else they hold may differ."""
    if x is y:
        return True
    mine, theirs = _numbers_in(x), _numbers_in(y)
    equal = functools.partial(np.array_equal, equal_nan=True)
    return len(mine) == len(theirs) and all(map(equal, mine, theirs))


def _numbers_in(tree: Any) -> list[Any]:
    values = [x for x in map(value_of, flatten(tree)[0]) if isinstance(x, NUMBERS)]
    return [x for x in values if np.asarray(x).dtype.kind in "biufc"]


def map_tree(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Return a tree of what a function makes of each leaf, and of those of others of the same structure.

    Raises
    ------
    ValueError
        The structures differ.
    """
    leaves, structure = flatten(tree)
    columns = [leaves]
    for other in others:
        found, theirs = flatten(other)
        if theirs != structure:
            raise ValueError(f"trees of different structure: {structure} and {theirs}")
        columns.append(found)
    return structure.build([function(*parts) for parts in zip(*columns, strict=True)])
