"""A tape as text."""

import numpy as np

import tapegrad as tg
from tapegrad.tape import tape as tapes


def test_show_lists_records_operands_and_what_is_kept():
    tapes.close(tapes.current())
    x = tg.tensor([1.0, 2.0], requires_grad=True)
    y = np.sin(x) * 3.0
    tape = y._tape
    shown = tape.show().splitlines()
    assert shown[0] == f"tape {tape.serial}, 4 records, open"
    assert [line.split()[1] for line in shown[1:]] == ["leaf()", "sin(%0)", "constant()", "multiply(%1,"]
    assert "float64 (2,) kept" in shown[2]
    tg.grad(y.sum(), x)
    assert "freed" in tape.show()
    assert len(tape.show(limit=2).splitlines()) == 3


def test_show_names_the_older_tape_of_a_link():
    tapes.close(tapes.current())
    x = tg.tensor(1.0, requires_grad=True)
    y = x * x
    older = tapes.local.tape
    tapes.close(older)
    z = y * y
    assert f"link() of %1 on tape {older.serial}" in z._tape.show()
