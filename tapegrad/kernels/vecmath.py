"""Branch-free elementary functions of a float64, for loops which LLVM turns into SIMD code.

A loop that calls libm stays scalar.  The functions here consist of arithmetic, comparisons and
selects only, so a loop that calls them is vectorised without fastmath flags and without a vector
math library.  ``NAME(x)`` is within 2 ulp of the exact value wherever ``NAME_ok(x)`` is true, the
sign of a zero included; elsewhere its result is arbitrary (never a trap) and the caller uses libm.
Arguments must be float64.

The text of a function and of what it names is pasted into generated kernels: every statement at
the top level is an import, a constant or a decorated function.  The functions are inlined into
the caller before its types are inferred, which costs a kernel a few milliseconds of compilation
(a function of its own costs tens of milliseconds).  Hence divisions are written ``_div``: an
inlined ``/`` would follow the error model of the caller.

``_mad(a, b, c)`` is a*b + c, fused where the target has a fused multiply-add and two operations
where it has not; both are within the error bounds.  ``_fma`` is always fused, by a call if need
be (only ``pow`` uses it).

Reductions
----------
exp, expm1, sinh, cosh, tanh, pow
    x = n ln 2 + r with |r| <= ln(2)/2.  ln 2 is split in two parts, the first short enough that
    its product with n is exact (Cody-Waite).  Adding 1.5 * 2**52 rounds to the nearest integer
    and leaves n in the low bits, from which 2**n is built by a shift.
    e**r = 1 + r + r**2 q(r), and e**x = 2**n e**r.  With s = 2**n:
    expm1(x) = (s - 1) + s expm1(r), where the leading sum keeps its rounding error;
    sinh(x) = (s - 1/s)/2 cosh(r) + (s + 1/s)/2 sinh(r), and cosh(x) likewise, without a division.
tanh
    x + x**3 P(x**2)/Q(x**2) below 0.8 and 1 - 2/(e**(2x) + 1) above, sharing one division.
log, log1p
    x = 2**k (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)).  With s = f/(2 + f), by
    log(1 + f) = 2 atanh(s): log(1 + f) = f - f**2/2 + s (f**2/2 + s**2 p(s**2)).
    log1p carries the rounding error of 1 + x along in f.
sin, cos, tan
    |x| = n pi/2 + r + c with |r| <= pi/4: Cody-Waite with three parts, the first two of 37 bits,
    so that products with n < 2**16 are exact.  No double up to 1e5 is so close to a multiple of
    pi/2 that r loses relative accuracy; c is the rounding error of r.
    tan(x) is tan(r) for even n and -1/tan(r) for odd n.
pow
    log(x) as for log, but in double-double arithmetic (about 66 bits); y log(x) as a
    double-double goes through exp.

Coefficients
------------
The polynomials are minimax approximations computed with the Remez exchange algorithm at 60
decimal digits for the relative error of the function, then rounded to double precision.
Their relative error is noted.  The rational one of tanh interpolates at Chebyshev nodes.
"""

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

ROUND = 6755399441055744.0  # 1.5 * 2**52
LOG2_E = 1.4426950408889634
LN2_HI = 0.6931471805598903  # 42 bits: exact products with |n| < 2**11
LN2_LO = 5.497923018708371e-14
TWO_OVER_PI = 0.6366197723675814
HALF_PI_1 = 1.5707963267923333  # 37 bits
HALF_PI_2 = 2.5633441515839558e-12  # 37 bits
HALF_PI_3 = 1.0562999066987428e-23
TWELFTH_HI = 0.08333333333333333
TWELFTH_LO = 4.625929269271485e-18

SIGN_BIT = -0x8000000000000000
EXPONENT_BITS = 0x7FF0000000000000
ONE_BITS = 0x3FF0000000000000  # the bits of 1.0
LOG_OFFSET = 0x3FF0000000000000 - 0x3FE6A09E667F3BCD  # bits of 1.0 less those of sqrt(1/2)
INT_BITS = 0x4330000000000000  # the bits of 2**52, whose unit in the last place is 1
INT_BIAS = 4503599627370496.0 + 1023.0
POW_BIAS = 4503599627370496.0 + 1023.0 * 2199023255552.0  # 2**52 + 1023 * 2**41
POW_BOUND = 1021.0 * 2199023255552.0
SMALLEST_NORMAL = 2.2250738585072014e-308
LARGEST = 1.7976931348623157e308

# (exp(r) - 1 - r) / r**2 on |r| <= 0.35; 2**-61
EXP = (
    0.5,
    0.16666666666666677,
    0.041666666666666706,
    0.008333333333320666,
    0.001388888888886502,
    0.00019841269888860391,
    2.4801587364164263e-05,
    2.755724119956014e-06,
    2.755723967243853e-07,
    2.511016569055849e-08,
    2.092539642739874e-09,
)
# (2 atanh(s)/s - 2) / s**2 in powers of s**2, |s| <= 3 - 2 sqrt(2); 2**-59
LOG = (
    0.6666666666666735,
    0.39999999999411096,
    0.28571428743262023,
    0.22222198476040775,
    0.18183569737218228,
    0.15313903311151442,
    0.14797507065557824,
)
# (log(m)/s - 1 - s**2/12) / s**4 in powers of s**2, where s = 2 (m - 1)/(m + 1), for m from
# sqrt(1/2) to sqrt(2); 2**-66
POW_LOG = (
    0.01250000000000071,
    0.002232142857038432,
    0.00043402778362007646,
    8.877824334732655e-05,
    1.8782670301367096e-05,
    4.045614404353604e-06,
    1.0069081420003515e-06,
)
# (sin(r)/r - 1) / r**2 in powers of r**2, |r| <= 0.786; 2**-58
SIN = (
    -0.16666666666666632,
    0.00833333333332234,
    -0.00019841269829746697,
    2.755731366982003e-06,
    -2.5050754524867716e-08,
    1.5896580447227994e-10,
)
# (cos(r) - 1 + r**2/2) / r**4 in powers of r**2, |r| <= 0.786; 2**-64
COS = (
    0.0416666666666666,
    -0.0013888888888874025,
    2.4801587289417664e-05,
    -2.755731433287885e-07,
    2.087572052506666e-09,
    -1.1359500444138366e-11,
)
# (tan(r)/r - 1) / r**2 in powers of r**2, |r| <= 0.786; 2**-56
TAN = (
    0.33333333333332765,
    0.133333333334162,
    0.05396825392591277,
    0.02186948962713368,
    0.00886321890831881,
    0.0035922913930349527,
    0.0014547438710521604,
    0.0005951242279793478,
    0.00022220386310033987,
    0.00013688914288610958,
    -2.690032180754627e-05,
    8.992638127525259e-05,
    -4.513327823300932e-05,
    2.09251933336655e-05,
)
# (sinh(r)/r - 1) / r**2 in powers of r**2, |r| <= 1.2; 2**-59
SINH = (
    0.16666666666666677,
    0.0083333333333317,
    0.0001984126984226388,
    2.7557318937839808e-06,
    2.5052152321803934e-08,
    1.605534544144399e-10,
    7.808012670260376e-13,
)
# the same on |r| <= 0.35; 2**-61
SINH_SHORT = (
    0.16666666666666677,
    0.008333333333320665,
    0.00019841269888863053,
    2.755724119693104e-06,
    2.5110166579558264e-08,
)
# (cosh(r) - 1) / r**2 in powers of r**2, |r| <= 0.35; 2**-57
COSH = (
    0.5000000000000014,
    0.041666666666501935,
    0.0013888888950776082,
    2.480148584327779e-05,
    2.763280769830928e-07,
)
# (tanh(x)/x - 1) / x**2 = P/Q in powers of x**2, |x| <= 0.8; 2**-63
TANH_P = (
    -0.3333333333333333,
    -0.021415595212508583,
    -0.00024357170226812298,
    -1.737224801578207e-08,
)
TANH_Q = (
    1.0,
    0.4642467856375257,
    0.024524667457054165,
    0.00025461941432290556,
)


@intrinsic
def _bits(typingctx, x):
    """The bits of a float64 as an int64."""

    def codegen(context, builder, signature, args):
        return builder.bitcast(args[0], ir.IntType(64))

    return types.int64(types.float64), codegen


@intrinsic
def _float(typingctx, bits):
    """The float64 with the given bits."""

    def codegen(context, builder, signature, args):
        return builder.bitcast(args[0], ir.DoubleType())

    return types.float64(types.int64), codegen


@intrinsic
def _select(typingctx, condition, x, y):
    """x if the condition is true, else y, both being evaluated."""

    def codegen(context, builder, signature, args):
        return builder.select(*args)

    return types.float64(types.boolean, types.float64, types.float64), codegen


@intrinsic
def _div(typingctx, x, y):
    """x / y by IEEE rules, whatever the error model."""

    def codegen(context, builder, signature, args):
        return builder.fdiv(*args)

    return types.float64(types.float64, types.float64), codegen


@intrinsic
def _abs(typingctx, x):
    """The absolute value."""

    def codegen(context, builder, signature, args):
        function = builder.module.declare_intrinsic("llvm.fabs", [ir.DoubleType()])
        return builder.call(function, args)

    return types.float64(types.float64), codegen


@intrinsic
def _copysign(typingctx, x, y):
    """The magnitude of x with the sign of y."""

    def codegen(context, builder, signature, args):
        double = ir.DoubleType()
        kind = ir.FunctionType(double, [double, double])
        function = builder.module.declare_intrinsic("llvm.copysign", [double], kind)
        return builder.call(function, args)

    return types.float64(types.float64, types.float64), codegen


@intrinsic
def _mad(typingctx, x, y, z):
    """x*y + z, fused where that is fast."""

    def codegen(context, builder, signature, args):
        double = ir.DoubleType()
        kind = ir.FunctionType(double, [double, double, double])
        function = builder.module.declare_intrinsic("llvm.fmuladd", [double], kind)
        return builder.call(function, args)

    return types.float64(types.float64, types.float64, types.float64), codegen


@intrinsic
def _fma(typingctx, x, y, z):
    """x*y + z with one rounding."""

    def codegen(context, builder, signature, args):
        double = ir.DoubleType()
        kind = ir.FunctionType(double, [double, double, double])
        function = builder.module.declare_intrinsic("llvm.fma", [double], kind)
        return builder.call(function, args)

    return types.float64(types.float64, types.float64, types.float64), codegen


@intrinsic
def _polynomial(typingctx, x, coefficients):
    """Horner's rule; the coefficients are a tuple in ascending order of degree."""

    def codegen(context, builder, signature, args):
        double = ir.DoubleType()
        kind = ir.FunctionType(double, [double, double, double])
        mad = builder.module.declare_intrinsic("llvm.fmuladd", [double], kind)
        degree = len(signature.args[1]) - 1
        value = builder.extract_value(args[1], degree)
        for power in range(degree - 1, -1, -1):
            value = builder.call(mad, [value, args[0], builder.extract_value(args[1], power)])
        return value

    return types.float64(types.float64, coefficients), codegen


@njit(inline="always")
def exp(x):
    t = _mad(x, LOG2_E, ROUND)
    n = t - ROUND
    r = _mad(n, -LN2_LO, _mad(n, -LN2_HI, x))
    value = (1.0 + _mad(r * r, _polynomial(r, EXP), r)) * _float((_bits(t) + 1023) << 52)
    return _select(x < -746.0, 0.0, value)


@njit(inline="always")
def exp_ok(x):
    # between -746 and -708 the result is subnormal or nearly so
    return (_abs(x) <= 708.0) | (x < -746.0)


@njit(inline="always")
def expm1(x):
    t = _mad(x, LOG2_E, ROUND)
    n = t - ROUND
    high = _mad(n, -LN2_HI, x)
    r = _mad(n, -LN2_LO, high)
    c = _mad(n, -LN2_LO, high - r)
    scale = _float((_bits(t) + 1023) << 52)
    a = scale - 1.0
    b = scale * r
    total = a + b  # |a| > |b| or a = 0, so the next line is the rounding error of the sum
    error = b - (total - a)
    value = total + (error + scale * _mad(r * r, _polynomial(r, EXP), c))
    # the sum above loses the sign of a zero
    return _copysign(_select(x < -40.0, -1.0, value), x)


@njit(inline="always")
def expm1_ok(x):
    return x <= 708.0


@njit(inline="always")
def log(x):
    bits = _bits(x)
    exponent = (bits + LOG_OFFSET) & EXPONENT_BITS
    k = _float((exponent >> 52) | INT_BITS) - INT_BIAS
    f = _float(bits - exponent + ONE_BITS) - 1.0
    s = _div(f, 2.0 + f)
    w = s * s
    h = 0.5 * f * f
    tail = _mad(s, _mad(w, _polynomial(w, LOG), h), k * LN2_LO)
    return _mad(k, LN2_HI, f - (h - tail))


@njit(inline="always")
def log_ok(x):
    return (x >= SMALLEST_NORMAL) & (x <= LARGEST)


@njit(inline="always")
def log1p(x):
    u = 1.0 + x
    v = u - 1.0
    error = (1.0 - (u - v)) + (x - v)
    bits = _bits(u)
    exponent = (bits + LOG_OFFSET) & EXPONENT_BITS
    k = _float((exponent >> 52) | INT_BITS) - INT_BIAS
    m = _float(bits - exponent + ONE_BITS) - 1.0
    c = error * _float(0x7FE0000000000000 - exponent)  # times 2**-k
    f = m + c  # exactly x if k = 0
    c = c - (f - m)
    s = _div(f, 2.0 + f)
    w = s * s
    h = 0.5 * f * f
    tail = _mad(s, _mad(w, _polynomial(w, LOG), h), _mad(k, LN2_LO, c))
    return _copysign(_mad(k, LN2_HI, f - (h - tail)), x)


@njit(inline="always")
def log1p_ok(x):
    return (x > -1.0) & (x <= 1e308)


# sin, cos and tan repeat the reduction: a shared helper would add 20 ms of compilation to each.


@njit(inline="always")
def sin(x):
    y = _abs(x)
    t = _mad(y, TWO_OVER_PI, ROUND)
    n = t - ROUND
    first = _mad(n, -HALF_PI_1, y)
    second = _mad(n, -HALF_PI_2, first)
    # the rounding error of the second difference, which is zero wherever |first| < n HALF_PI_2
    error = _mad(n, -HALF_PI_2, first - second)
    low = _mad(n, -HALF_PI_3, error)
    r = second + low
    c = (second - r) + low
    w = r * r
    sine = r + _mad(r * w, _polynomial(w, SIN), c)
    u = _mad(w, -0.5, 1.0)
    u_low = _mad(w, -0.5, 1.0 - u)  # the rounding error of u
    cosine = u + _mad(w * w, _polynomial(w, COS), _mad(r, -c, u_low))
    quadrant = _bits(t)
    value = _select((quadrant & 1) == 0, sine, cosine)
    return _float(_bits(value) ^ ((quadrant & 2) << 62) ^ (_bits(x) & SIGN_BIT))


@njit(inline="always")
def sin_ok(x):
    return _abs(x) <= 1e5


@njit(inline="always")
def cos(x):
    y = _abs(x)
    t = _mad(y, TWO_OVER_PI, ROUND)
    n = t - ROUND
    first = _mad(n, -HALF_PI_1, y)
    second = _mad(n, -HALF_PI_2, first)
    error = _mad(n, -HALF_PI_2, first - second)
    low = _mad(n, -HALF_PI_3, error)
    r = second + low
    c = (second - r) + low
    w = r * r
    sine = r + _mad(r * w, _polynomial(w, SIN), c)
    u = _mad(w, -0.5, 1.0)
    u_low = _mad(w, -0.5, 1.0 - u)  # the rounding error of u
    cosine = u + _mad(w * w, _polynomial(w, COS), _mad(r, -c, u_low))
    quadrant = _bits(t) + 1
    value = _select((quadrant & 1) == 0, sine, cosine)
    return _float(_bits(value) ^ ((quadrant & 2) << 62))


@njit(inline="always")
def cos_ok(x):
    return _abs(x) <= 1e5


@njit(inline="always")
def tan(x):
    y = _abs(x)
    t = _mad(y, TWO_OVER_PI, ROUND)
    n = t - ROUND
    first = _mad(n, -HALF_PI_1, y)
    second = _mad(n, -HALF_PI_2, first)
    error = _mad(n, -HALF_PI_2, first - second)
    low = _mad(n, -HALF_PI_3, error)
    r = second + low
    c = (second - r) + low
    w = r * r
    u = _mad(r * w, _polynomial(w, TAN), _mad(c, w, c))
    tangent = r + u
    low = (r - tangent) + u
    z = _div(-1.0, tangent)
    cotangent = _mad(z * z, low, z)  # -1/(tangent + low)
    value = _select((_bits(t) & 1) == 0, tangent, cotangent)
    return _float(_bits(value) ^ (_bits(x) & SIGN_BIT))


@njit(inline="always")
def tan_ok(x):
    return _abs(x) <= 1e5


@njit(inline="always")
def sinh(x):
    y = _abs(x)
    # below 1.2 no reduction, for the two terms of the sum would nearly cancel
    t = _select(y < 1.2, ROUND, _mad(y, LOG2_E, ROUND))
    n = t - ROUND
    r = _mad(n, -LN2_LO, _mad(n, -LN2_HI, y))
    a = _float((_bits(t) + 1022) << 52)
    b = _float((1022 - _bits(t)) << 52)
    w = r * r
    sine = _mad(r * w, _polynomial(w, SINH), r)
    d = a - b
    error = (a - d) - b
    value = d + (_mad(d, w * _polynomial(w, COSH), (a + b) * sine) + error)
    return _copysign(value, x)


@njit(inline="always")
def sinh_ok(x):
    return _abs(x) <= 708.0


@njit(inline="always")
def cosh(x):
    y = _abs(x)
    t = _mad(y, LOG2_E, ROUND)
    n = t - ROUND
    r = _mad(n, -LN2_LO, _mad(n, -LN2_HI, y))
    a = _float((_bits(t) + 1022) << 52)
    b = _float((1022 - _bits(t)) << 52)
    w = r * r
    sine = _mad(r * w, _polynomial(w, SINH_SHORT), r)
    # a >= b: the larger is added last
    return a + (b + _mad(a + b, w * _polynomial(w, COSH), (a - b) * sine))


@njit(inline="always")
def cosh_ok(x):
    return _abs(x) <= 708.0


@njit(inline="always")
def tanh(x):
    y = _abs(x)
    y = _select(y < 20.0, y, 20.0)  # tanh(20) rounds to 1
    small = y < 0.8
    z = y + y
    t = _mad(z, LOG2_E, ROUND)
    n = t - ROUND
    r = _mad(n, -LN2_LO, _mad(n, -LN2_HI, z))
    scale = _float((_bits(t) + 1023) << 52)
    w = y * y
    p = w * _polynomial(w, TANH_P)
    q = _polynomial(w, TANH_Q)
    denominator = _mad(scale, _mad(r * r, _polynomial(r, EXP), r), scale + 1.0)
    quotient = _div(_select(small, y * p, -2.0), _select(small, q, denominator))
    return _copysign(_select(small, y, 1.0) + quotient, x)


@njit(inline="always")
def tanh_ok(x):
    return _abs(x) >= 0.0  # not NaN


@njit(inline="always")
def pow(x, y):
    bits = _bits(x)
    exponent = (bits + LOG_OFFSET) & EXPONENT_BITS
    k = _float((exponent >> 52) | INT_BITS) - INT_BIAS
    m = _float(bits - exponent + ONE_BITS)
    # s + s_low = 2 (m - 1)/(m + 1) = 2 f/d
    d = m + 1.0
    d_low = m - (d - 1.0)
    f = _mad(m, 2.0, -2.0)
    inverse = _div(1.0, d)
    s = f * inverse
    s_low = _fma(-s, d_low, _fma(-s, d, f)) * inverse
    # c + c_low = s**3
    w = s * s
    c = s * w
    c_low = _mad(s, _fma(s, s, -w), _fma(s, w, -c))
    c_low = _mad(3.0 * w, s_low, c_low)
    # g + g_low = 1/12 + s**2/80 + ..., so that log(m) = s + s**3 g
    q = _mad(w, _polynomial(w, POW_LOG), TWELFTH_LO)
    g = TWELFTH_HI + q
    g_low = (TWELFTH_HI - g) + q
    # a + a_low = log(m)
    p = c * g
    p_low = _mad(c, g_low, _mad(c_low, g, _fma(c, g, -p)))
    a = s + p
    a_low = ((s - a) + p) + (p_low + s_low)
    # b + b_low = log(x)
    b = _mad(k, LN2_HI, a)
    b_low = (_mad(k, LN2_HI, -b) + a) + _mad(k, LN2_LO, a_low)
    # exp of v + v_low = y log(x)
    v = y * b
    v_low = _fma(y, b_low, _fma(y, b, -v))
    t = _mad(v, LOG2_E, ROUND)
    n = t - ROUND
    high = _mad(n, -LN2_HI, v)
    low = _mad(n, -LN2_LO, v_low)
    r = high + low
    c = (high - r) + low
    return (1.0 + (r + _mad(r * r, _polynomial(r, EXP), c))) * _float((_bits(t) + 1023) << 52)


@njit(inline="always")
def pow_ok(x, y):
    # The bits of x, read as an integer, interpolate log2(x) linearly between powers of 2, in
    # units of 2**-41 after dropping 11 bits.  The interpolant e is a lower bound; what it lacks
    # is at most 0.0861 and, above 1, at most (log2(e) - 1) e.  The bound on |log2(x)| is up to
    # 1.1 times too large from 1 to 2 and 1.39 times just below 1, where results beyond 2**930
    # and 2**730 (and below their inverses) may be refused.
    e = _float((_bits(x) >> 11) | INT_BITS) - POW_BIAS
    lack = _mad(e, LOG2_E - 1.0, 2.0)
    lack = _select(lack < 1.9e11, lack, 1.9e11)
    bound = _abs(y) * (_abs(e) + _select(lack > 2.0, lack, 2.0))
    return (bound <= POW_BOUND) & (x >= SMALLEST_NORMAL) & (x <= LARGEST)
