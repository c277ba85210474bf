"""Where things lie in a description of an expression of arrays, and in its record on a tape.

On the tape, from the lowest address: the description of the expression, how many elements there are, of sums
along which axis (`SUMMED`, `INNER`), of what is written to an array the statement there and how many blocks
wait, with memory for these, or for a block's cotangents, the partials that all elements
share, and for each block of `BLOCK` elements: the partials that are each element's own, operand by operand,
then of each operand that is recorded the numbers of its statements (a word with the first and how they go on,
and, only if that is not one by one, each of them). Last come, as in all records, words that the sweep reads:
how many statements and bytes there are, and the kind.
"""

from __future__ import annotations

# Words of a description, which the code that records fills in: the function of a block, where results go,
# the kind of the record; of operands, of those that are active, and of partials of either sort, how many;
# how long the axis is that results are added up along, 0 if they are not, and how many elements a step along
# it is, of an axis of all elements 1; how many elements there are; what results are, and two words on that;
# axes, and how long each is.
(ROW, RESULT, KIND, OPERANDS, LEAVES, OWN, COMMON, SUMMED, INNER, TOTAL, FORM, BEGIN, HOME, AXES,
 SHAPE) = range(15)  # fmt: skip
# What results are: numbers; or floats, whose first statement and tape are noted in the two words;
# or what is written to an array, whose header the second is, the first the kind of a record of statements.
AS_NUMBERS, AS_FLOATS, STORED = range(3)
SUMS = 1  # of a record's kind whether results are added up; or `STORED`
# Words of each operand, after the shape: whether it is active: PLAIN, NUMBERED (each number knows its
# statement) or COUNTED (floats, whose statements follow each other); the first such statement, and the tape;
# the bytes from each element to the next one of all in C order, UNEVEN if they differ, SINGLE if there is one
# element for all; its address; the bytes from one to the next on each axis.
LEAF, FIRST, TAPE, STEPS, ADDRESS, STRIDES = range(6)
PLAIN, NUMBERED, COUNTED = range(3)
UNEVEN, SINGLE = 1, 2
BLOCK = 256  # elements
UNCHOSEN = 0x7FF8_0000_756E_6368  # a nan, in place of a partial: 0 times any cotangent is 0
FACTOR = 32  # the bit from which on the code of partials of their own has the place of a factor of them all
