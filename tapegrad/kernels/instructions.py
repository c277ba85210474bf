"""LLVM's instructions as text, for `tapegrad.kernels.lowering`: quicker than objects.

A function of a module of llvmlite's gets a body (`Body`), blocks of lines to which builders append. Types are
few and each is one object, so they are compared by identity; `text` is what the module says.
"""

from __future__ import annotations

import functools
import struct

from llvmlite import ir


class Type:
    """A type, and its constants: ``I64(3)``."""

    def __init__(self, known):
        self.known = known
        self.text = str(known)

    @functools.cached_property
    def pointer(self):
        """The type of pointers to this one."""
        return Pointer(self)

    def __call__(self, number):
        text = str(int(number))
        if isinstance(self.known, ir.DoubleType):
            text = f"0x{struct.unpack('<Q', struct.pack('<d', number))[0]:016x}"
        return Value(self, text, number)


class Pointer(Type):
    """The type of pointers to another one, the `pointee`."""

    def __init__(self, pointee):
        super().__init__(pointee.known.as_pointer())
        self.pointee = pointee


I64, I32, BYTE, BIT = (Type(ir.IntType(width)) for width in (64, 32, 8, 1))
F64, F32, VOID = Type(ir.DoubleType()), Type(ir.FloatType()), Type(ir.VoidType())
UNORDERED = {"==": "ueq", "!=": "une", "<": "ult", "<=": "ule", ">": "ugt", ">=": "uge"}
ORDERED = {"==": "oeq", "!=": "one", "<": "olt", "<=": "ole", ">": "ogt", ">=": "oge"}
SIGNED = {"==": "eq", "!=": "ne", "<": "slt", "<=": "sle", ">": "sgt", ">=": "sge"}


class Value:
    """What an instruction gives: its type, what it is called, and its number if it is a constant."""

    __slots__ = ("constant", "text", "type")

    def __init__(self, kind, text, constant=None):
        self.type, self.text, self.constant = kind, text, constant


class Block:
    """Lines that are run one after the other, the last of which says where to go on."""

    __slots__ = ("is_terminated", "label", "lines")

    def __init__(self, label):
        self.label, self.lines, self.is_terminated = label, [], False


class Body:
    """The blocks of a function of a module, which it prints."""

    def __init__(self, function):
        self.parameters = [Value(I64, x.get_reference()) for x in function.args]
        self.count = 0
        self.entry = Block("entry")
        self.blocks = [self.entry]
        function.blocks = [self]

    def block(self, name):
        """Append a block of a name like this."""
        self.count += 1
        self.blocks.append(Block(f"{name}.{self.count}"))
        return self.blocks[-1]

    def alloca(self, kind, count=1):
        """Memory for so many values, as long as the function runs."""
        return Builder(self, self.entry).line(kind.pointer, f"alloca {kind.text}, i64 {count}")

    def descr(self, buffer):
        """Print all, as a block of llvmlite's does."""
        for block in self.blocks:
            buffer.append(f"{block.label}:\n  " + "\n  ".join(block.lines) + "\n")


class Builder:
    """Appends instructions to a block. Methods are called as the instructions are."""

    def __init__(self, body, block):
        self.body, self.block = body, block

    def line(self, kind, text):
        """Append an instruction that gives a value."""
        body = self.body
        body.count = n = body.count + 1
        name = f"%v{n}"
        self.block.lines.append(f"{name} = {text}")
        return Value(kind, name)

    def position_at_end(self, block):
        self.block = block

    def load(self, place):
        kind = place.type.pointee
        return self.line(kind, f"load {kind.text}, {place.type.text} {place.text}")

    def store(self, value, place):
        self.block.lines.append(f"store {value.type.text} {value.text}, {place.type.text} {place.text}")

    def gep(self, place, index, inbounds=False):
        """The place of an element, so many after the one at a place."""
        if index.constant == 0:
            return place
        words = "getelementptr inbounds" if inbounds else "getelementptr"
        kind = place.type
        return self.line(kind, f"{words} {kind.pointee.text}, {kind.text} {place.text}, i64 {index.text}")

    def binary(self, name, a, b):
        """An instruction of two operands of one type, which the result has too."""
        return self.line(a.type, f"{name} {a.type.text} {a.text}, {b.text}")

    def cast(self, name, value, kind):
        """An instruction of one operand, of which it makes another type's."""
        return self.line(kind, f"{name} {value.type.text} {value.text} to {kind.text}")

    def icmp(self, sign, a, b):
        return self.line(BIT, f"icmp {SIGNED[sign]} {a.type.text} {a.text}, {b.text}")

    def fcmp(self, sign, a, b, names):
        return self.line(BIT, f"fcmp {names[sign]} {a.type.text} {a.text}, {b.text}")

    def neg(self, value):
        return self.binary("sub", value.type(0), value)

    def fneg(self, value):
        return self.line(value.type, f"fneg {value.type.text} {value.text}")

    def not_(self, value):
        return self.binary("xor", value, value.type(-1))

    def select(self, test, a, b):
        return self.line(a.type, f"select i1 {test.text}, {a.type.text} {a.text}, {b.type.text} {b.text}")

    def call(self, kind, function, args):
        """Call what a text names, for a result of this type."""
        text = f"call {kind.text} {function}({', '.join([f'{x.type.text} {x.text}' for x in args])})"
        if kind is not VOID:
            return self.line(kind, text)
        self.block.lines.append(text)
        return I64(0)

    def phi(self, kind, sides):
        """The value of the block that one comes from."""
        return self.line(
            kind, f"phi {kind.text} " + ", ".join(f"[{x.text}, %{block.label}]" for x, block in sides)
        )

    def branch(self, block):
        self._leave(f"br label %{block.label}")

    def cbranch(self, test, yes, no):
        self._leave(f"br i1 {test.text}, label %{yes.label}, label %{no.label}")

    def ret(self, value):
        self._leave(f"ret {value.type.text} {value.text}")

    def _leave(self, text):
        self.block.lines.append(text)
        self.block.is_terminated = True
