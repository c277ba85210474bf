"""The page of cases: it is current, each case has tests, and each topic those it names."""

from pathlib import Path

import pytest

from . import semantics

COUNTS = {"A": 15, "B": 7, "C": 11, "D": 13, "E": 17, "F": 14, "F2": 4, "G": 16, "H": 12, "I": 7}


@pytest.mark.full
def test_the_page_is_current():
    path = Path(__file__).parents[1] / "docs/SEMANTICS.md"
    assert path.read_text() == semantics.page(), "python -m tests.semantics > docs/SEMANTICS.md"


def test_there_is_a_row_for_each_case():
    expected = [f"{section}-{k}" for section, count in COUNTS.items() for k in range(1, count + 1)]
    assert [row[0] for row in semantics.rows()] == expected
    assert all(all(row[:3]) for row in semantics.rows())


def test_each_case_has_a_test_of_its_name():
    tested = {semantics.case_of(name) for name in semantics.tests()}
    assert {row[0] for row in semantics.rows()} - tested == semantics.UNTESTED


def test_each_case_that_is_as_in_torch_is_compared():
    compared = {semantics.case_of(name) for name in semantics.programs()}
    alike = {row[0] for row in semantics.rows() if not row[3]}
    assert alike - compared == {"G-13", "H-11", "I-5"}  # vmap has no counterpart; the others have no tests


@pytest.mark.parametrize("topic", semantics.TOPICS)
def test_the_tests_of_a_topic_are_there(topic):
    names = semantics.TOPICS[topic].split()
    assert len(set(names)) >= 4
    assert not [name for name in names if name not in semantics.tests()]


def test_fifteen_topics():
    assert len(semantics.TOPICS) == 15


@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("test_A3_message", "A-3"),
        ("test_F2_remove", "F-2"),
        ("test_F2_3_written", "F2-3"),
        ("test_F13_x", "F-13"),
        ("G3 float", "G-3"),
        ("C9", "C-9"),
        ("test_I_as_torch", None),
    ],
)
def test_names_of_cases(name, case):
    assert semantics.case_of(name) == case
