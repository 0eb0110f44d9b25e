"""Primitives of JAX by what they do with entries.

One that no list and no rule has makes its parameters unclear, under its name.
"""

_NONLINEAR = """
abs ceil cos erf erfc exp exp2 expm1 floor integer_pow log log1p logistic max min pow
round rsqrt sign sin sqrt square tanh
"""
_LINEAR = """
add add_any convert_element_type copy mul neg select_n sub
"""
_OTHERS = """
acos acosh and asin asinh atan atan2 atanh bessel_i0e bessel_i1e bitcast_convert_type
cbrt clamp complex conj copy_p cosh cumlogsumexp cummax cummin cumprod cumsum device_put
digamma div eq erf_inv fft ge gt igamma igammac imag is_finite layout_constraint le
lgamma lt mesh_cast name ne nextafter not optimization_barrier or pcast
population_count pvary real reduce_precision rem reshard rev sharding_constraint
shift_left shift_right_arithmetic shift_right_logical sinh stop_gradient tan xor
"""
_RANKING = "approx_top_k argmax argmin reduce_max reduce_min sort top_k"
_SUMMING = "reduce reduce_and reduce_or reduce_prod reduce_sum reduce_xor"

NONLINEAR = frozenset(_NONLINEAR.split())
LINEAR = frozenset(_LINEAR.split())
ELEMENTWISE = NONLINEAR | LINEAR | frozenset(_OTHERS.split())
RANKING = frozenset(_RANKING.split())
REDUCTIONS = RANKING | frozenset(_SUMMING.split())
