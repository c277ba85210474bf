"""Places in the words that Python and the compiled sweep share."""

from __future__ import annotations

from tapegrad.config import bounds

BOUNDS = int(bounds())  # 1: checked build; see `tapegrad.kernels.bounds`

# The state of a sweep is one array of words, the first of them of the tape at hand: its columns, flags and
# cotangents of the sweep, marks of what was released, whether values are to be checked, sinks; what the plan
# found. Then what links lead to (`linked`), where leaves' gradients go on that began on newer tapes: rows of
# a record, the row of such a tape and the record there; and where the sweep stops for Python.
(
    WORD, META, ADDRESS, SHAPES, RECORDS, FLAGS, COTANGENTS, FREED, GUARDED,
    SINKS, SINK_COUNT, PENDING_COUNT, WORK, MARKED, OLDER, OLDER_COUNT, JOINS, JOIN_COUNT, STOPS, TAPE_WORDS,
) = range(20)  # fmt: skip
BEFORE, AFTER = 1, 2  # STOPS: Python has a turn before a tape is swept, after it
LOST = 1  # instead of the address of a row: the older tape was freed

# The table of tapes of a sweep has such words of each, in a row; rows ascend as tapes do. TAPE is the address
# of the row at hand, AT_WORK whether its tape is planned or swept, UNREAD that of a row without records yet;
# STOP_EACH is set to stop before each tape.
(
    TAPES, TAPE, AT_WORK, UNREAD, STOP_EACH,
    OPERATIONS, KERNELS, CASTS, SEEDS, SEED_COUNT, REACHED_COUNT,
    PENDING, POSITION, FINISH, DESCRIPTORS, EVERY, TOUCHED, PAUSE,
    ALLOCATE, FREE, BLOCKS, FREE_LISTS, HELD_BYTES, SCRATCH, WALK, STORE, GEMM,
) = range(19, 46)  # fmt: skip
STATE_WORDS = 87

# What reading an open tape needs besides.
ITEMS, CAPACITY, KNOWN, NONE_OBJECT, ARRAY_TYPE, OPCODES, LIVE, COUNTS = range(46, 54)

# What a sweep in one call needs besides.
SEALING, SEALING_WORDS, RESULTS, RESULT_ARRAYS, RULES, WORK_LIMIT, SEED_DATA = range(54, 61)

# The dict of a tape that has its records' words.
DESCRIBED = 61

# Of a state for the sweeps of compiled code: the next idle one, for how many records there is room, what was
# compiled when it was filled in (an object), and marks of a tape of which nothing was released.
NEXT_STATE, ROOM, KNOWN_VERSION, UNFREED = range(62, 66)

# Whether its rules are recorded: no kernels are needed. How many entries the list that has the values has for
# each record: the last one is the value. Whether cotangents have an axis of lanes, and nothing is recorded.
# Whether there may be inputs that no way leads to.
IS_RECORDED, WIDTH, BATCHED, IN_PART = range(66, 70)

# The record where reading begins: before it are no roots and no inputs; operands there are read as
# a plan comes to them. How many words of shapes there are, where the last one begins, and its axes.
OLDEST, SHAPE_WORDS, LAST_SHAPE, LAST_AXES = range(70, 74)

# Where records' times go, if not 0: a timespec each; and the function that tells the time, with its clock.
STAMPS, CLOCK, CLOCK_KIND = 74, 75, 76

# Whether what rules give is searched for nan; then, of which operand it was found.
CHECK, SPOILED = 77, 78

# The table of a checked build, and two words that stay 0.
REGIONS, NOTHING_AT = 79, 80

# For each sink 0, or where hooks of a leaf see its gradient a number, the higher the sooner that is whole.
RIPE = 82
WATCHED_LEAF = 1  # there until it is known when

# Whether values that nothing reads are not computed in a sweep that is recorded (see `deferring`).
DEFERS = 83

# Whether links may lead to an input: then one that is reached ends the plan of a tape on its own.
LINKS_LEAD = 85

# How many records of an open tape were read, where that is only what seeds depend on; 0 where all are.
READ_COUNT = 86

# A list that has what a recorded sweep of a sealed tape has made of its imports, by record.
RECALLED = 84

# A record in the log of an open tape: so many entries of a list.
OPCODE_ENTRY, FIRST_ENTRY, SECOND_ENTRY, VALUE_ENTRY, ENTRIES = range(5)

# What describes a record. For `view` and `assign`: where the window of each operand begins among these words,
# then the windows, of which each has how many axes, whether all of the operand's cotangent is covered, where
# it begins in that and in the record's, extents, and steps there and here. For `scatter` and `put`: how many
# places, and which. For a recurrence: its kind, and how many elements lie before, along and after its axes.
# A factor of a product is described as the sweep comes to it: rows, columns, their strides, then strides over
# the batch, of values and of cotangents.
WINDOW_AXES, WINDOW_COVERS, WINDOW_THERE, WINDOW_HERE, WINDOW_EXTENTS = range(5)
PLACE_COUNT, PLACES = 0, 1
ALONG_KIND, ALONG_BEFORE, ALONG_LENGTH, ALONG_AFTER, ALONG_WORDS = range(5)
MATRIX_ROWS, MATRIX_COLUMNS, MATRIX_ROW_STRIDE, MATRIX_COLUMN_STRIDE, MATRIX_BATCH = range(5)

# A record's flags in a sweep, and how a compiled sweep stops.
NEED, MARK, SINK, FRESH, FOREIGN, ACTIVE, READ, RULE = 1, 2, 4, 8, 16, 32, 64, 128
(
    DONE, KERNEL, PYTHON, MEMORY, FREED_RECORD, FAILED, PAUSED, ANOMALY, RAISED, UNDESCRIBED, NEWLY_WATCHED,
    NOT_READ, ENTERED, LEFT_TAPE,
) = range(14)  # fmt: skip

# Opcodes that are not ops.
CONST, LEAF, LINK, CONS = range(4)

# A row of the table of ops.
ROW, TEMPLATE, FORM, READS, TOTAL, PARTIAL, SCALE = 16, 0, 1, 4, 7, 8, 11
NONE, ONE, TWO, CHAIN, NUMBER = range(5)  # forms: which operands the record's word holds
CONSTANT, NOTHING, MEAN = -1, -2, -3  # a partial without a kernel
(  # those from VIEW on have descriptors
    IMPORT, ELEMENTWISE, REDUCE, RESHAPE, ELEMENT, SCAN, MATMUL, COMPILED,
    VIEW, SCATTER, ASSIGN, PUT, RECURRENCE, BY_RULE,
) = range(14)  # fmt: skip

# Dtype codes (`tapegrad.kernels.abi`): those of complex numbers are from COMPLEX on, higher by PAIRS than
# their parts; values of those up to DIFFERENTIABLE have derivatives in compiled code, dtypes above SWEPT are
# left to rules. WIDTHS: binary logarithms of bytes, three bits each.
COMPLEX, PAIRS, DIFFERENTIABLE, SWEPT, BOOLEAN = 3, 2, 4, 13, 13
DOUBLE_CODE, SINGLE_CODE, INTEGER_CODE = 1, 2, 5  # others of real numbers: of 64 bits, with a sign
WIDTHS = 0o123012334230
# Kernels of a partial, by the code of the result; OF_COMPLEX more for a real result of a complex operand.
COLUMNS, OF_COMPLEX = 8, 4
BY_RULE_ONLY = 1  # instead of a kernel's address: there is none

# WALK: an index space, its operands, the arguments of a kernel call, and sums.
MAXDIM, OPERANDS, BLOCK = 64, 8, 512
SHORT_AXIS = 32  # elements, below which a walk's innermost axis is walked together with the one before it
FEW_ROWS = 8  # of a short axis, from which on these are summed apart, in double precision
TILE = 16  # rows and columns of a transposed matrix that are copied together
DIRECT, STAGED = 1024, 128  # elements in a block of a ufunc's loop: of operands as they lie, of copies
AHEAD = 2048  # bytes by which a checksum asks for memory before it reads it
SUMMED = 1 << 20  # bytes from which on a checksum takes less than a copy, as that leaves the nearest caches
SPREAD = 0x1E3779B97F4A7C15  # by multiples of it places in arrays, and addresses, are spread
LENT = 4  # an array that others can write to weighs this part of its size: most of them keep it anyway
WINDOW_WORDS = 1 + WINDOW_EXTENTS + 3 * MAXDIM  # that describe a view of an operand
MATRIX_WORDS = MATRIX_BATCH + 2 * MAXDIM  # that describe a factor of a product
GEMV = 4  # before the addresses of products with a vector, in the table of those of matrices
THREADS = 9  # there: the address of what says how many threads OpenBLAS has; 0 for another library
GEMM_WORDS = 12  # of BLAS's arguments; behind them in SCRATCH come the words of both factors
# Above this size of a matrix product BLAS runs in threads. Those of SciPy's library, which the compiled sweep
# calls where NumPy's is not to be found, get in the way of those of NumPy's, which computed the product: then
# the rule runs, with NumPy's.
THREADED = 30_000  # multiplications
# Up to so many elements of the result, or of a factor, products with more multiplications are computed in
# parts of as many, of which OpenBLAS copies no matrix.
NARROW, AT_ONCE = 10_000, 1_000_000
MULTIPLICATIONS = 32  # of matrices, which take as long as an element elsewhere
STRIDE = MAXDIM
HEAD = (OPERANDS + 1) * MAXDIM
NDIM, COUNT, COMPUTE, FUNCTION, FACTOR, POINTER, CODE = 0, 1, 2, 3, 4, 8, 16
COUNTER, ARGUMENT = HEAD + 32, HEAD + 32 + MAXDIM
SUMS = ARGUMENT + 16  # of some rows of a short axis, perhaps of complex numbers; behind them those of all
SUMS_WORDS = 2 * SHORT_AXIS
WALK_WORDS = SUMS + 2 * SUMS_WORDS

# Offsets into the structs of CPython and NumPy, proved by `tapegrad.kernels.abi` before use.
DATA_AT, NDIM_AT, DIMS_AT, STRIDES_AT, BASE_AT, DESCR_AT, FLAGS_AT = 16, 24, 32, 40, 48, 56, 64
WEAK_LIST_AT = 72  # of an array: what refers to it weakly
C_CONTIGUOUS, CONTIGUOUS, OWNER, ALIGNED, WRITEABLE = 1, 3, 4, 0x100, 0x400  # an array's flags
C_ORDER = 0  # NPY_CORDER
DIGIT_AT, SCALAR_AT, REFCOUNT_AT, TYPE_AT, SIZE_AT, ITEMS_AT, ALLOCATED_AT = 24, 16, 0, 8, 16, 24, 32
BYTEARRAY_AT = 40  # the address of its bytes
TUPLE_ITEMS_AT, BYTES_AT, SLICE_AT, SET_SIZE_AT = 24, 32, 16, 24
UFUNC_COUNTS_AT, UFUNC_LOOPS_AT, UFUNC_DATA_AT, UFUNC_TYPES_AT, UFUNC_CODES_AT = 16, 32, 40, 48, 64

# Places in CPython's PyTypeObject, PyNumberMethods and PyMappingMethods, and how its comparisons are counted.
TYPE_ITSELF, RICH_COMPARE, NB_BOOL = 0, 25, 9
LESS, AT_MOST, EQUAL, OTHER, GREATER, AT_LEAST = range(6)
AS_NUMBER_AT, AS_MAPPING_AT, MP_SUBSCRIPT, MP_ASSIGN = 96, 112, 1, 2
NB_ADD, NB_SUBTRACT, NB_MULTIPLY, NB_POWER, NB_NEGATIVE, NB_ABSOLUTE = 0, 1, 2, 5, 6, 8
NB_TRUE_DIVIDE, NB_MATRIX_MULTIPLY = 30, 34

EXACT = 1 << 53  # integers up to here are doubles
RESTARTED = 1024  # records, from which on a leaf that begins a graph leaves a tape that no Tensor is on
# A sweep that is recorded itself makes some records for each that it reads. The limit of a tape so many times
# as long as what it reads is not raised for it, and none beyond so many records.
RECORDED_FOR_EACH, MOST_RECORDED = 8, 16384
QUICK_INPUTS = 128  # of a sweep in one call at most, and as many roots
ROOT, COTANGENT, HELD_WORDS = QUICK_INPUTS, 2 * QUICK_INPUTS, 3 * QUICK_INPUTS  # held, after inputs
# It releases nothing; what is imported from older tapes are leaves; a mode wants to know of it; it is
# recorded; it is for all leaves there are.
RETAIN, ALONE, WATCHED, RERECORDED, ALL_LEAVES = 1, 2, 4, 8, 16

# What the entry point does.
(
    SEAL, PRUNE, HAS_LOST, FIND_NEEDS, MARK_TAPES, RUN_TAPES, RESET, CONTRIBUTE, DEPOSIT, RELEASE, SPEND,
    METHODS, LOOP, CHECKSUM, RECORD_OP, GRADIENTS, BACKWARD, DROP, FOLLOW, MATCH_CALL,
    IS_UNCHANGED, LIKE_EXPECTED, RESET_IDLE, NUMBER_EXPECTED,
) = range(24)  # fmt: skip

# What those of later programs give the addresses of.
RERECORD, RERECORD_SEALED, UPDATE, SET_METHOD, SET_SLOT = range(5)

# Compiled recording: shared words, first those with the address of a function of the C API.
API = (
    "PyObject_Vectorcall", "PyDict_GetItemWithError", "PyLong_AsLongLong", "PyLong_FromLongLong",
    "PyList_Append", "PyList_SetSlice", "PyContextVar_Get", "PyThread_get_thread_ident", "Py_IncRef",
    "Py_DecRef", "PyType_GenericAlloc", "PyErr_ExceptionMatches", "PyErr_Clear",
    "PyUnicode_CompareWithASCIIString", "PyList_SetItem", "PyDict_SetItem", "PyDict_DelItem",
    "PyWeakref_NewRef", "PyEval_GetFrame", "PyFrame_GetBack", "PyFrame_GetCode", "PyFrame_GetLasti",
    "PyContextVar_Set", "PyErr_Fetch", "PyErr_Restore", "PyBytes_FromStringAndSize",
    "PyObject_GetItem", "PyDict_New", "PyDict_Next", "PyTuple_New", "PyObject_GetAttr", "PyObject_SetAttr",
    "PyErr_Occurred", "PyErr_CheckSignals", "PyErr_NoMemory", "PyEval_SaveThread", "PyEval_RestoreThread",
    "PyList_New", "PyObject_VectorcallDict", "PyDict_Copy", "PyObject_SetItem",
    "PyByteArray_FromStringAndSize",
)  # fmt: skip
(
    VECTORCALL, DICT_GET, LONG_AS, LONG_FROM, APPEND, CUT, CONTEXT_GET, THREAD, INCREF, DECREF,
    ALLOCATE_OBJECT, ERROR_MATCHES, ERROR_CLEAR, COMPARE_ASCII,
    LIST_SET, DICT_SET, DICT_DELETE, REFER_WEAKLY, FRAME, FRAME_BACK, FRAME_CODE, FRAME_OFFSET,
    CONTEXT_SET, ERROR_TAKE, ERROR_GIVE, BYTES_FROM,
    GET_ITEM, NEW_DICT, DICT_NEXT, NEW_TUPLE, GET_ATTRIBUTE, SET_ATTRIBUTE, ERROR_OCCURRED,
    CHECK_SIGNALS, NO_MEMORY, SAVE_THREAD, RESTORE_THREAD, NEW_LIST,
    CALL_WITH, COPY_DICT, SET_ITEM, NEW_BYTEARRAY,
    NONE_AT_ALL, TRUE, ZERO, TWO_OBJECT, OPERAND_ERRORS, MODE, CALL_NAME,
    DOUBLE, TENSOR_TYPE, FLOAT_TYPE, INT_TYPE, STR_TYPE, FLOAT64_TYPE, NDARRAY_TYPE,
    V_SLOT, TAPE_SLOT, AT_SLOT, EXTRA_SLOT,
    LOG_SLOT, LIMIT_SLOT, WEIGHT_SLOT, OWNER_SLOT, LEAVES_SLOT, CONSTANTS_SLOT, NUMBERS_SLOT,
    PLACEHOLDER_SLOT, SHADOWS_SLOT, LINES_SLOT, SERIAL_SLOT, ATTRS_SLOT, DESCRIBED_SLOT, FREED_SLOT,
    HELD_SLOT, IMPORTS_SLOT, RETAINED_SLOT,
    LINKS_SLOT, HOOKS_SLOT, PACKED_SLOT, CLAIMS_SLOT, GUARDS_SLOT, CALLS_SLOT, LATEST_SLOT,
    OLDER_SLOT, COLUMNS_SLOT, CELL_HANDLE_SLOT, CELL_HOOKS_SLOT, CELL_SINCE_SLOT, COLUMNS_VALUES_SLOT,
    COLUMNS_WORDS_SLOT,
    BASIS_SLOT, WHOLE_SLOT, MEMORY_SLOT, DETACHED_SLOT, ORIGIN_SLOT, TORN_SLOT, HANDLES_SLOT,
    ROOT_SLOT, STORAGES_SLOT, WRITES_SLOT,
    SMALLEST, POOLED, HEAVIEST, SHEETS, UFUNCS, RECORD, ARRAY_UFUNC, GUARD,
    MODE_TYPE, TAPE_TYPE, PLAIN_SLOT, NOTING_SLOT, TIMING_SLOT, NOTE_SLOT, TRACING_SLOT, SINGLE, LOOK,
    SCALARS, TUPLE_TYPE, LIST_TYPE, BYTES_TYPE, CONS_OPCODE, SHEETS_BY_OP, MAKE_SHEET,
    SLICE_TYPE, ELLIPSIS, GETITEM, GETITEM_SHEET, ELEMENT_SHEET, JOIN, INDEX_TEXT, PLACE_TEXT, AXIS_TEXT,
    FALSE, CELL_TYPE, OPEN_LEVELS, VERSION, CELLS_TEXT, GRAD_TEXT, LEAVE, NEW_LIKE, ZEROS, BYTE_DTYPE,
    TURNS, ADD_GRADS, IDLE_STATE, WORKSPACE, DESCRIBE, CLAIM_TYPE, TELL_FAILURE, APPLY_RULE, OPS, WATCH,
    END_WATCH,
    REQUIRES_GRAD_TEXT, SHOWN_TEXT, INFERENCE_TEXT, VOLATILE_TEXT, LEAF_OPCODE, LINK_OPCODE,
    NEWEST_TAPE, CURRENT_TAPE, STALE_TAPE, DUAL_TAPE, LOAD, COPIED, PLACES_TEXT, WORDS_TEXT, WINDOW_TEXT,
    INTEGER, EXCEPTION, GUARD_SETTING, OFF_TEXT, CHECKSUM_TEXT, NEW_COPY, NEW_VIEW, SHADOW, EMPTY_LIKE,
    OUT_NAMES, NEW_ARRAY, SET_BASE, ALIGNMENT, KEPT_BYTES, TEST_ERRORS, ERRORS, CALL_TEXT, NOT_IMPLEMENTED,
    PROGRAMS, MAKE_PROGRAM, RECORD_RULE, CONSTANT_LIKE,
    TRACE_RULE, TRACE_FIT, RECORD_VALUE, EMPTY, RECALL_IMPORT,
    LATEST_IMPORTS, BATCHED_RULE, FITS, OPAQUE_TEXT, TRACED, TWINS,
    SETITEM, ASSIGN_SHEET, EXTRA_TYPE, STORAGE_TEXT, VERSION_TEXT, SEVERAL_TEXT, RETAINS_GRAD_TEXT,
    DELITEM_TEXT, CALL_HOOKS, CALL_POST_HOOKS, CALL_LEAF_HOOKS, END_SWEEP, COMPUTE_DEFERRED, UNKNOWN,
    MATCHING, ERROR_MODE, WARNINGS, FILTERS_TEXT, SHOW_TEXT,
    NUMPY_TRUE, NUMPY_FALSE, COMPARE_BY_METHOD, TRUTH_BY_METHOD,
    CLAIM_FLAGS_SLOT, CLAIM_FREES_SLOT, CLAIM_THREAD_SLOT, CLAIM_FORKS_SLOT, CLAIM_STATE_SLOT,
    CLAIM_TAPE_SLOT, CLAIM_SEEN_SLOT, FORKS, SWEEPS, SWEEPS_TEXT, RELEASED_TEXT, RELEASE_TEXT,
    PRE_TEXT, POST_TEXT, ACCUMULATED_TEXT, ARRAY_FUNCTION, DICT_TYPE, ATTACHED, EXPOSED_TEXT, SHARED_TEXT,
    VALUE_OR_SHAPE, ITEM, DETACH, AS_FLOAT, AS_INT, AS_INDEX, ANSWERED, DETACHED,
) = range(254)  # fmt: skip
SHARED_WORDS = 255
UNHANDLED = 1  # no address of an object

# A sheet, what compiled recording knows of an op: USES are three masks; after TWIN comes the reflected
# operator's; RECORDED is a form. WINDOW, where compiled code describes the record: whether the result is a
# view of some of the operand's elements or of all, operands joined along an axis or along a new one, what an
# index or places take, an operand written into a window of another or at places of it, or put into zeros at
# a basic index or at one with arrays, or a recurrence along axes, whose kind is added to ALONG. ARITHMETIC:
# which op of it, 0 for another. LOOPS are of an elementwise op: the ufunc's loop for float64 and what it is
# called with, the same for float32, and for float64 that of the vector form.
OPCODE, OPERATE, UFUNC, VECTOR, USES, OP, ARITY, TWIN = 0, 1, 2, 3, 4, 7, 8, 9
RECORDED, KEY, WINDOW, POINTWISE, ARITHMETIC = range(11, 16)
LOOPS, SINGLE_LOOPS, VECTOR_LOOPS = 16, 18, 20
SHEET_WORDS = 22
PART, WHOLE, JOINED, STACKED, TAKEN, PLACED, WRITTEN, SCATTERED, EMBEDDED, ADDED, ALONG = range(1, 12)
SUM, DIFFERENCE, PRODUCT, QUOTIENT, OPPOSITE = range(1, 6)  # ARITHMETIC

# The operands of an op being recorded: where they stand on the tape, else what becomes a constant there.
QUICK_OPERANDS = 64
SECURED = 1  # instead of the address of a new constant's value: it has been imported
PLACE, VALUE, NEW_CONST, OPERAND_WORDS = 0, QUICK_OPERANDS, 2 * QUICK_OPERANDS, 3 * QUICK_OPERANDS

# The table of a tape's links (`tapegrad.tape.links`), which begins with room for so many, as a power of two,
# and how many bits of a key are a record's number.
LINK_COUNT, LINK_ROOM, LINK_ENTRIES, FEWEST_LINKS, LINK_KEY_BITS = 0, 1, 2, 3, 20

# Where arrays that others can write to were imported latest, ways in sets: the address of the elements, the
# serial of the tape, the position there, and the copy if it is a small one; 0 for none.
SOURCE, IMPORTER, IMPORTED_AT, IMPORTED_COPY, WAY_WORDS = range(5)
WAYS, WAY_SETS = 4, 128

# The program of a rule: how many steps it has, a mask of the operands that have to be constants, how many
# operands get something, and what; then for each step the sheet of the op to be recorded, or 0, its function,
# attributes, or 0, names of those that are the record's, or 0, whether factors among these are to be twins,
# an array of the shape and dtype of what it gives, or 0 where they are not known, and what it takes. Taken or
# given is CT, RESULT, FIRST and a slot, STEPS and the number of a step, or an object's address. The mask says
# too whether the result may have no 0, and whether it is for some values.
STEP_COUNT, CONSTANTS, GIVEN_COUNT, GIVEN, STEP_WORDS = 0, 1, 2, 3, 9
STEP_SHEET, STEP_FUNCTION, STEP_ATTRS, STEP_HANDED, STEP_TWINS, STEP_LIKE, TAKEN_BY_STEP = range(7)
TAKEN_AT_MOST, NONZERO, BRANCHED = 3, 1 << 8, 1 << 9
# What programs of rules for some shapes are kept by: words, among them attributes, each with what it is; how
# many programs are kept at most.
KEY_WORDS, MOST_PROGRAMS = 64, 1024
AN_OBJECT, AN_INTEGER, A_TUPLE = 0, 1, 2
CT, RESULT, FIRST, STEPS, PROGRAM_WORDS, NOTHING_THERE = 0, 1, 2, 8, 72, -1
REF_WORDS = 2 * PROGRAM_WORDS  # what a program at work knows; then the same as constants on the tape

# What anomaly mode tells compiled recording: whether no value that is not finite has been seen yet, the frame
# where the way from the user's code begins, and what stands for the frames outside of that. How many frames
# are noted at most.
LOOKING, BASE, OUTSIDE, DEPTH = 0, 1, 2, 32

# What the profiler tells it: where the next event is written, from where on there is no room; the clock;
# whether shapes are wanted. An event: opcode and the numbers of axes, begin, end, thread, bytes, the tape's
# serial, position; then the extents.
EVENT, EVENT_END, EVENT_CLOCK, EVENT_CLOCK_KIND, EVENT_SHAPES = range(5)
EVENT_WORDS, EVENT_ROOM, NO_SHAPE = 7, 7 + 2 * 64, 255

# Where operations are listed that a program is to be made of: the address of a list of objects, how many
# bytes of results it may hold yet, operations at most, a list for the places of operands that are arrays,
# from how many bytes on a result is large, a list for Tensors without a history and their numbers; where
# numbers are, for how many operations there is room, what makes more of it; from how many bytes on a value is
# a shadow; ops of comparisons. A large result of which there is a shadow weighs a part of its size, by
# SHADOWED, as a program has the pages while they are needed.
(
    TRACE_OBJECTS, TRACE_BYTES, TRACE_MOST, TRACE_BROUGHT, TRACE_LARGE, TRACE_FLAT, TRACE_NUMBERS,
    TRACE_ROOM, TRACE_GROW, TRACE_LEAST, TRACE_COMPARISONS,
) = range(11)  # fmt: skip
TRACE_WORDS, SHADOWED = TRACE_COMPARISONS + 6, 32
# Objects of an operation: the op, the value, operands without a history, or their values. Where there is one
# operand, attributes or None come last; where Python has listed the operation a list of the operands, and
# attributes.
LISTED_OP, LISTED_VALUE, LISTED_FIRST, LISTED_SECOND, LISTED_OBJECTS = range(5)
# Numbers: how many operands, 0 where Python has listed them, whether the result is a view and the value a
# shadow; then what tells the Tensors of the result, and of the operands: address, serial of the tape,
# position. One without a history has the position -1, and 0 unless its value is the operand.
LISTED_HOW, LISTED_RESULT, LISTED_OPERANDS, LISTED_NUMBERS = 0, 1, 4, 10
OPERANDS_LISTED, A_VIEW, A_SHADOW = 3, 4, 8
FLAT = -1  # instead of the serial of a tape, where there is no history: then the position is its number

# A program at work (`tapegrad.compilation`): MATCHING is the address of its words, or 0: that of the next
# event that is expected, the mode in which it counts and is recorded, and NumPy's handling of errors. An
# event: where words are that it shares with events that are alike, the Tensor that stands for its result, of
# each operand an address: of the Tensor or object that it has to be, where its number goes, as float64 or
# float32, or as int64 A_WHOLE one of Python's, of the array that takes its elements, or of an index that it
# has to be equal to; and where the number is that it gives, or the array, once that was looked at; else 0.
# Those words: the op, 0 at the end, what each operand is, the code of the number's dtype, and whether it is
# RECORDED; where words of a call are that means it, see below, and of the write that it is; and behind a
# write by a view those of one that changes nothing. For numbers that are looked at MATCHING has the first
# event of the path, of how many the results are computed, what runs rows, and which, or 0 where Python has
# to; how many arguments there are, which have rows like those of events in front of the first. For calls of
# the function from compiled code: the end of the path, the Tensor that it returns then, whether a value was
# looked at, which errors of numbers are told, NumPy's handling of these when the call begins, and how often
# it has changed since; Python's filters of warnings then: the list, how many, and the first; and a list that
# keeps these, and what shows warnings; where a Tensor keeps what refers to it weakly; the handling of errors
# in which rows that call functions run, if there are such; whether events were passed over that nothing
# reads; lists of the arrays of results, or 0, and of arguments; what has Python run rows, and what tells
# whether operations are compared under another handling of errors, and the mode in which nothing is recorded.
# At last ops of comparisons.
(
    NEXT_EVENT, MATCHING_MODE, MATCHING_ERRORS, FIRST_EVENT, COMPUTED, RUN_FUNCTION, RUN_WORDS_AT,
    ARGUMENT_COUNT, LAST_EVENT, RESULT_HANDLE, SEEN, ERRORS_REPORTED, ERRORS_AT_FIRST, CHANGES,
    FILTERS, FILTER_COUNT, FIRST_FILTER, TELLING, WEAKLY_HELD_AT, RAISING, MISSED, VALUES_LIST,
    ARGUMENTS_LIST, COMPUTING, HANDLED, MATCHING_OFF, COMPARISONS,
) = range(27)  # fmt: skip
MATCHING_WORDS = COMPARISONS + 6
EVENT_ALIKE, EVENT_HANDLE, EVENT_FIRST, EVENT_SECOND, EVENT_NUMBER, EVENT_SIZE = range(6)
(
    ALIKE_OP, ALIKE_FIRST, ALIKE_SECOND, ALIKE_CODE, ALIKE_RECORDED, ALIKE_CALL, ALIKE_WRITE,
    ALIKE_IN_VAIN, ALIKE_WORDS,
) = range(9)  # fmt: skip
EITHER, RECORDED_ON, RECORDED_OFF = range(3)  # of an event: in which mode it counts
FEW_ARGUMENTS = 8  # of functions that NumPy answers from compiled code, at most
LOOK_BACK = 32  # events, among which compiled code looks for that of a Tensor
# An array takes those that lie as it does; of ELEMENTS those whose axes lie in its order, where the op is
# elementwise; as one that is WRITTEN_FROM any of its shape, and numbers. Of SAME_ELEMENTS the array has to be
# equal. A number OF_TYPE is one of a type of NumPy's, or a complex one of Python's, of which three words tell
# the type, where it goes, and how many bytes.
(
    THIS_OBJECT, A_NUMBER, A_SINGLE, AN_ARRAY, AN_INDEX, SEVERAL, ELEMENTS, WRITTEN_FROM, SAME_ELEMENTS,
    A_WHOLE, OF_TYPE,
) = range(11)  # fmt: skip
# A call of a method or of one of NumPy's functions: which, how many arguments there are, how many with names,
# and where words of the write are by which it ends, or 0; how many events it is, the Tensor that stands for
# its result, how many constants it has, and of several results the type of a list or a tuple, or what makes
# another one of a tuple, 0 for one, and how many; whether it is to be computed at once, as it may raise an
# error; then of each argument what it is, as of an operand, of those with names the name before that, of
# constants where they go, where they are, and how many bytes, and the Tensors of several results.
# SEVERAL arguments are in a list or tuple, which has words like those of a call, its type in the place of the
# function.
CALL_OF, CALL_COUNT, CALL_NAMES, CALL_WRITE, CALL_EVENTS, CALL_HANDLE, CALL_CONSTANTS = range(7)
CALL_KIND, CALL_RESULTS, CALL_COMPUTED, CALL_ARGUMENTS = 7, 8, 9, 10
# A write: the Tensor that is written to, the index, what is written, of how many events it consists, and how
# many Tensors nobody may have then, and which, as they see the same memory.
WRITE_TO, WRITE_INDEX, WRITE_OPERAND, WRITE_EVENTS, WRITE_VIEWS, WRITE_HANDLES = 0, 1, 2, 4, 5, 6

# What a function reads that skips its Python: how many entries there are; then of each a dict, a
# key, and the object that is there, or 0 for none; or where an object is in memory, 0, and the object.
READ_FROM, READ_KEY, READ_VALUE, READ_WORDS = range(4)

# What runs programs: their rows, functions of the C API and of the C library with what errors of floating-
# point numbers are, and those that were met; then the events, whether anybody has a Tensor of one, where a
# Tensor keeps what refers to it weakly, what runs the rows in reverse, and how many there are. For a
# function of Python's: the first row and the end, where it came to, which errors of numbers are told,
# whether none of the user's Python has run, so that nobody can have a Tensor, and where False and True are.
# With which word each row begins ROW_STARTS says, half words that lie there. A row: where its form lies; the
# addresses of the operands, or the objects that a function of Python's is called with. Of each group GROUPS
# has the row behind it, and where its blocks begin, and the end, or 0 where all have as many elements; there
# are GROUP_COUNT. The form of a row, which
# it shares with rows that do the same elsewhere: what it does, a function with its data, over how many
# elements, how many operands, whether its loop clears flags of errors; of the operands by how many bytes
# for each element they advance, and the strides of a ufunc's loop: 0 for a number. What only a group knows
# starts anew with each block: it does not advance. A fused kernel has its operands in words of its own, where
# it says instead of operands: addresses, advances, after how many elements they advance besides, by how many
# bytes, and room for the addresses of a block; where it gives 0 the rows are not to be used: ABANDONED. A
# total is the sum of the parts of all blocks, which lie as many bytes apart as a block has elements: with
# what it begins, where it goes, and by what it is divided, or 0. A reduction has what it begins with, the
# elements, where it goes, and a divisor. A product of matrices, or of as many as a stack has, has extents and
# strides in ROW_STEPS, and behind its places which operand may be scaled, how many elements that has for each
# product, and words for that, or 0. Sums of short rows have what they begin with, the elements and where they
# go; how many elements a row has is FORM_DATA.
(
    PROGRAM_ROWS, CALL_FUNCTION, DROP_REFERENCE, CLEAR_ERROR, TEST_FLAGS, CLEAR_FLAGS, ALL_FLAGS, ERRORS_MET,
    EVENTS_AT, EVENT_COUNT, HELD, WEAK_REFERENCES_AT, REVERSE_AT, REVERSE_COUNT, ABANDONED,
    FIRST_ROW, END_ROW, CAME_TO, REPORTED, ADD_REFERENCE, RUNS_LONG, RELEASE_LOCK, TAKE_LOCK, ROW_STARTS,
    SKIPS_PYTHON, GROUPS, GROUP_COUNT, NO_AND_YES, RUN_WORDS,
) = *range(28), 29  # fmt: skip
ROW_OPERANDS, PROGRAM_BLOCK = 8, 1024  # operands at most; elements of a block
GROUP_END, GROUP_BLOCKS, GROUP_WORDS = range(3)
ROW_FORM, ROW_PLACES = range(2)
SCALED_OPERAND, SCALED_SIZE, SCALED_BY, ROW_STEPS = range(ROW_PLACES + 3, ROW_PLACES + 7)  # of a product
FORM_KIND, FORM_FUNCTION, FORM_DATA, FORM_EXTENT, FORM_COUNT, FORM_CLEARS, FORM_STRIDES = range(7)
RUN_ROWS, RUN_ALL, RUN_PLAN, GIVE_FUNCTION, MOVE_WORDS = range(5)
# A ufunc's inner loop, a kernel of a rule, a call, a stop, a fused kernel, sums of short rows in a group, a
# total, a reduction, a product, sums of short rows by themselves, and rows that are one of these.
(
    BY_LOOP, BY_KERNEL, BY_CALL, BY_PYTHON, BY_FUSED, BY_GROUP_SUMS, BY_TOTAL, BY_REDUCTION, BY_PRODUCT,
    BY_SUMS, BY_ROWS,
) = range(11)  # fmt: skip
SHORT_ROW = 128  # elements of a row that NumPy sums by eight sums side by side
# What an operand is scaled with: kernels that count numbers and that multiply, where two powers of two are,
# and what the kernels are given: limits, the elements, and where counts go of those that are small and large;
# a factor and the elements. A count is 0 in all bytes, or not.
(
    COUNTING, SCALING, SCALE_UP, SCALE_DOWN, COUNTED_LIMITS, COUNTED, SMALL_COUNT, LARGE_COUNT,
    SCALED_FACTOR, SCALED, SCALING_WORDS,
) = 0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11  # fmt: skip
