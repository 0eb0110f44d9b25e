"""Primitives of JAX by what they do with entries.

One that no list and no rule has makes its parameters unclear, under its name.
"""

_NONLINEAR = """
abs ceil cos erf erfc exp exp2 expm1 floor integer_pow log log1p log2 logistic max min
one_minus_square polynomial pow reciprocal round rsqrt sign sin sqrt square tanh
"""
_LINEAR = """
add add_any add_dependency convert_element_type copy device_put layout_constraint mul
name neg optimization_barrier preduced pvary reduce_precision reshard select_n
sharding_constraint stop_gradient sub with_memory_space_constraint xla_metadata_value
"""
_OTHERS = """
acos acosh and asin asinh atan atan2 atanh bessel_i0e bessel_i1e bitcast_convert_type
cbrt clamp clz complex conj cosh digamma div eq eq_to erf_inv ge gt igamma igamma_grad_a
igammac imag is_finite le le_to lgamma lt lt_to mulhi ne nextafter not or polygamma
population_count real regularized_incomplete_beta rem rev shift_left
shift_right_arithmetic shift_right_logical sinh stochastic_round tan xor zeta
"""
_ALONG = "cumlogsumexp cummax cummin cumprod cumsum fft"
_RANDOM = """
prng_random_bits prng_seed prng_split philox2x32 philox4x32 random_bits random_clone
random_fold_in random_seed random_split random_unwrap random_wrap rng_bit_generator
rng_uniform threefry2x32 threefry4x32
"""
_RANKING = "approx_top_k argmax argmin reduce_max reduce_min sort top_k"
_SUMMING = "reduce reduce_and reduce_or reduce_prod reduce_sum reduce_xor"

NONLINEAR = frozenset(_NONLINEAR.split())
LINEAR = frozenset(_LINEAR.split())
ELEMENTWISE = NONLINEAR | LINEAR | frozenset(_OTHERS.split())
ALONG_AN_AXIS = frozenset(_ALONG.split())
RANDOM = frozenset(_RANDOM.split())
RANKING = frozenset(_RANKING.split())
REDUCTIONS = RANKING | frozenset(_SUMMING.split())
