"""Places in the words that Python and the compiled sweep share."""

from __future__ import annotations

# The state of a sweep is one array of words.
(
    WORD, META, ADDRESS, SHAPES, RECORDS, OPERATIONS, KERNELS, CASTS,
    FLAGS, COTANGENTS, SEEDS, SEED_COUNT, SINKS, SINK_COUNT, FREED, REACHED, REACHED_COUNT,
    PENDING, PENDING_COUNT, POSITION, FINISH, DESCRIPTORS, EVERY, PHASE, WORK, TOUCHED, PAUSE,
    ALLOCATE, FREE, BLOCKS, FREE_LISTS, HELD_BYTES, SCRATCH, WALK, STORE, DGEMM, SGEMM, MARKED,
) = range(38)  # fmt: skip
STATE_WORDS = 56

# What reading an open tape needs besides.
ITEMS, CAPACITY, KNOWN, NONE_OBJECT, ARRAY_TYPE, OPCODES, LIVE, COUNTS = range(38, 46)

# What a small sweep in one call needs besides.
SEALING, SEALING_WORDS, RESULTS, RESULT_ARRAYS, RULES, WORK_LIMIT = range(46, 52)

# A record's flags in a sweep, and how a compiled sweep stops.
NEED, MARK, SINK, FRESH, FOREIGN, ACTIVE = 1, 2, 4, 8, 16, 32
DONE, KERNEL, PYTHON, MEMORY, FREED_RECORD, FAILED, PAUSED = range(7)

# Opcodes that are not ops.
CONST, LEAF, LINK, CONS = range(4)

# A row of the table of ops.
ROW, TEMPLATE, FORM, READS, TOTAL, PARTIAL, SCALE = 16, 0, 1, 4, 7, 8, 11
NONE, ONE, TWO, CHAIN, NUMBER = range(5)  # forms: which operands the record's word holds
CONSTANT, NOTHING, MEAN = -1, -2, -3  # a partial without a kernel
IMPORT, ELEMENTWISE, REDUCE, RESHAPE, VIEW, ELEMENT, SCATTER, SCAN, MATMUL, BY_RULE = range(10)

# WALK: an index space, its operands, and the arguments of a kernel call.
MAXDIM, OPERANDS, BLOCK = 64, 8, 512
STRIDE = MAXDIM
HEAD = (OPERANDS + 1) * MAXDIM
NDIM, COUNT, COMPUTE, FUNCTION, FACTOR, POINTER, CODE = 0, 1, 2, 3, 4, 8, 16
COUNTER, ARGUMENT = HEAD + 32, HEAD + 32 + MAXDIM
WALK_WORDS = ARGUMENT + 16

# Offsets into the structs of CPython and NumPy, proved by `tapegrad.kernels.abi` before use.
DATA_AT, NDIM_AT, DIMS_AT, STRIDES_AT, DESCR_AT = 16, 24, 32, 40, 56
DIGIT_AT, SCALAR_AT, REFCOUNT_AT, TYPE_AT, LIST_ITEMS_AT = 24, 16, 0, 8, 24

QUICK_RECORDS, QUICK_INPUTS = 256, 16  # limits of a sweep in one call

# What the entry point does.
SEAL, PRUNE, PLAN, RUN, RESET, CONTRIBUTE, AT_ONCE, RELEASE, SPEND = range(9)
