"""Trees of arguments and results: numbers and arrays in dicts, lists, tuples and dataclasses."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

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
    else:
        leaves.append(tree)
        return LEAF
    return Structure(kind, keys, tuple(_flatten(part, leaves) for part in parts))


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
