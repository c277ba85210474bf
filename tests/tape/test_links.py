"""The table of a tape's links, in Python and in compiled code."""

import random

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.kernels import abi
from tapegrad.kernels.replay.layout import FEWEST_LINKS
from tapegrad.tape import links
from tapegrad.tape import tape as tapes


@pytest.mark.parametrize("count", [0, 1, (1 << FEWEST_LINKS) // 2, (1 << FEWEST_LINKS) // 2 + 1, 4095])
def test_a_table_has_what_was_noted(count):
    numbers = random.Random(count)
    known, table = {}, None
    for q in range(count):
        key = links.key_of(numbers.randrange(1, 1 << 31), 4 * numbers.randrange(1, 4096))
        if key not in known:
            known[key] = 4 * (q + 1)
            table = links.with_link(table, key, known[key])
    assert links.positions(table) == sorted(known.values())
    assert all(links.find(table, key) == at for key, at in known.items())
    assert links.find(table, links.key_of(1 << 31, 4)) is None


@pytest.mark.skipif(not abi.native(), reason="compiled code records links only where it records")
def test_python_and_compiled_code_fill_one_table():
    """Whoever imports a result of an older tape, the other one finds it."""
    x = tg.tensor(0.5, requires_grad=True)
    tg.grad(x * x, x)
    older = [x * x for _ in range(40)]
    tapes.close(older[0]._tape)
    total = x * 1.0
    tape = total._tape
    by_python = {q: tape.link(z._tape, z._at, z._v) for q, z in enumerate(older) if q % 2}
    for z in older + older:
        total = total + z
    imported = [tape.link(z._tape, z._at, z._v) for z in older]
    assert all(imported[q] == at for q, at in by_python.items())
    assert len({*imported}) == 40 and links.positions(tape.links) == sorted(imported)
    assert tape.sealed().links()[0].size == 40 and tape.links is None
    (g,) = tg.grad(total, x)
    assert g == np.float64(1 + 2 * 40)
