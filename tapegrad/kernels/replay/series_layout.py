"""Places in the words that Python and the compiled power series share."""

# A state: the list of an open tape's log, the record that moves and the one whose series is wanted; the
# highest power; how many numbers a value has, and whether it is one without axes; the table of ops and that
# of programs, by opcode and a bit for each operand that moves; the program that is missing; memory, with its
# size in bytes; where the direction is; types of objects that a value may be; where in the memory are the
# places of series and their numbers, by record, and the nodes of programs; a direction that is a number; two
# types more; whether the result has infinities or what is no number; how many numbers it has.
(
    LOG_AT, MOVED, LOOKED_FOR, HIGHEST, ELEMENTS, IS_NUMBER, OPS_AT, PROGRAMS_AT, WANTED, SPACE, SPACE_BYTES,
    DIRECTION, NUMBER_KIND, ARRAY_KIND, DTYPE_KIND, SERIES_AT, NODES_AT, DIRECTION_NUMBER,
    TRUTH_KIND, TRUTHS_KIND, SUSPECT, FOUND_COUNT,
) = range(22)  # fmt: skip
SERIES_WORDS = 22
OPERAND_BITS = 3

# How the walk ends: done; a program is to be made; another way is to be found; more memory is wanted.
EXPANDED, NO_PROGRAM, REFUSED, NO_ROOM = range(4)
APART = -1  # in the place of a series: of what has a history of its own
NOT_KEPT = 2  # of a value: no derivative reads it, and there is its shadow alone

# A program: how many nodes, instructions for first coefficients, instructions for later ones, and whether
# there is one, before those, for the value of the result. An instruction: what it does, to which node, with
# which three; a number or bits that say more; a ufunc's loop and what that is called with, or the number that
# a node is filled with.
NODES, INSTRUCTION, PROGRAM_HEAD = 96, 8, 4
CODE_AT, TO_NODE, FROM_NODE, WITH_NODE, AND_NODE, HOW, LOOP_AT, LOOP_DATA = range(8)
(
    FILL, ADD_UP, TAKE_OFF, TIMES, DIVIDED, MINUS, CHOICE, BY_LOOP, GREATER, LESS, AT_LEAST, AT_MOST, EQUAL,
    DIFFERENT, LENGTH,
) = range(15)  # fmt: skip
# Of later coefficients.
SAME, OPPOSITE, SUM_OF, DIFFERENCE, SCALED, PRODUCT_OF, OVER, QUOTIENT, SLOPE, CHOSEN, POWER_OF = range(11)
FIRST_TERM, BY_CONSTANT = 1, 2  # HOW of a slope: nothing is there yet; the partial does not move
