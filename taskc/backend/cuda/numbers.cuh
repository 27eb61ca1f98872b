//: f16
struct f16 { u16 bits; };

//: bf16
struct bf16 { u16 bits; };

//: f8e4m3
struct f8e4m3 { u8 bits; };

//: f8e5m2
struct f8e5m2 { u8 bits; };

//: unsigned_of
template <class T> struct Unsigned { typedef T type; };
template <> struct Unsigned<i8> { typedef u8 type; };
template <> struct Unsigned<i16> { typedef u16 type; };
template <> struct Unsigned<i32> { typedef u32 type; };
template <> struct Unsigned<i64> { typedef u64 type; };

//: add unsigned_of
template <class T> __device__ __forceinline__ T add(T a, T b) {  // modulo 2**bits
    typedef typename Unsigned<T>::type U;
    return (T)((U)a + (U)b);
}

//: subtract unsigned_of
template <class T> __device__ __forceinline__ T subtract(T a, T b) {
    typedef typename Unsigned<T>::type U;
    return (T)((U)a - (U)b);
}

//: multiply unsigned_of
template <class T> __device__ __forceinline__ T multiply(T a, T b) {
    typedef typename Unsigned<T>::type U;
    return (T)((U)a * (U)b);
}

//: negate unsigned_of
template <class T> __device__ __forceinline__ T negate(T a) {
    return (T)(0 - (typename Unsigned<T>::type)a);
}

//: absolute negate
template <class T> __device__ __forceinline__ T absolute(T a) {
    return a < 0 ? negate(a) : a;
}

//: popcount unsigned_of
template <class T> __device__ __forceinline__ T popcount(T a) {
    typedef typename Unsigned<T>::type U;
    return (T)(sizeof(T) == 8 ? __popcll((U)a) : __popc((U)a));
}

//: leading_zeros unsigned_of
template <class T> __device__ __forceinline__ T leading_zeros(T a) {
    typedef typename Unsigned<T>::type U;
    return (T)(sizeof(T) == 8 ? __clzll((i64)a) : __clz((i32)(U)a) - (32 - 8 * (i32)sizeof(T)));
}

//: trailing_zeros unsigned_of
template <class T> __device__ __forceinline__ T trailing_zeros(T a) {
    typedef typename Unsigned<T>::type U;
    u32 end = sizeof(T) < 4 ? 1u << (8 * sizeof(T)) % 32 : 0u;  // where a narrow one ends
    return (T)(sizeof(T) == 8 ? __clzll((i64)__brevll((U)a)) : __clz((i32)__brev((U)a | end)));
}

//: reverse_bits unsigned_of
template <class T> __device__ __forceinline__ T reverse_bits(T a) {
    typedef typename Unsigned<T>::type U;
    return (T)(sizeof(T) == 8 ? __brevll((U)a) : __brev((U)a) >> (32 - 8 * sizeof(T)) % 32);
}

//: floor_divide negate
template <class T> __device__ __forceinline__ T floor_divide(T a, T b) {
    if (b == 0) return 0;
    if ((T)-1 < 0 && b == (T)-1) return negate(a);  // the smallest number by -1 wraps
    T quotient = (T)(a / b);
    return (T)(quotient - (a % b != 0 && (a % b < 0) != (b < 0)));
}

//: floor_modulo
template <class T> __device__ __forceinline__ T floor_modulo(T a, T b) {
    if (b == 0 || ((T)-1 < 0 && b == (T)-1)) return 0;
    T rest = (T)(a % b);
    return (T)(rest + (rest != 0 && (rest < 0) != (b < 0) ? b : 0));
}

//: power multiply
template <class T> __device__ __forceinline__ T power(T a, T b) {
    if (b < 0) {  // the inverse, truncated
        if (a != 1 && a != (T)-1) return 0;
        b = b & 1;
    }
    T result = 1;
    for (; b != 0; b = (T)(b >> 1)) {
        if (b & 1) result = multiply(result, a);
        a = multiply(a, a);
    }
    return result;
}

//: floor_divide.f32
__device__ __forceinline__ f32 floor_divide(f32 a, f32 b) {
    f32 rest = fmodf(a, b), ratio = a / b;
    if (b == 0.0f) return ratio;
    f32 quotient = (a - rest) / b;
    if (rest != 0.0f && (b < 0.0f) != (rest < 0.0f)) quotient = quotient - 1.0f;
    if (quotient == 0.0f) return copysignf(0.0f, ratio);
    f32 whole = floorf(quotient);
    return quotient - whole > 0.5f ? whole + 1.0f : whole;
}

//: floor_divide.f64
__device__ __forceinline__ f64 floor_divide(f64 a, f64 b) {
    f64 rest = fmod(a, b), ratio = a / b;
    if (b == 0.0) return ratio;
    f64 quotient = (a - rest) / b;
    if (rest != 0.0 && (b < 0.0) != (rest < 0.0)) quotient = quotient - 1.0;
    if (quotient == 0.0) return copysign(0.0, ratio);
    f64 whole = floor(quotient);
    return quotient - whole > 0.5 ? whole + 1.0 : whole;
}

//: floor_modulo.f32
__device__ __forceinline__ f32 floor_modulo(f32 a, f32 b) {
    f32 rest = fmodf(a, b);
    if (b == 0.0f) return rest;
    if (rest == 0.0f) return copysignf(0.0f, b);
    return (b < 0.0f) != (rest < 0.0f) ? rest + b : rest;
}

//: floor_modulo.f64
__device__ __forceinline__ f64 floor_modulo(f64 a, f64 b) {
    f64 rest = fmod(a, b);
    if (b == 0.0) return rest;
    if (rest == 0.0) return copysign(0.0, b);
    return (b < 0.0) != (rest < 0.0) ? rest + b : rest;
}

//: shift_left unsigned_of
template <class T> __device__ __forceinline__ T shift_left(T a, T by) {  // the count is unsigned
    typedef typename Unsigned<T>::type U;
    return (U)by < 8 * sizeof(T) ? (T)((U)a << (U)by) : (T)0;
}

//: dot_bytes
template <class T> __device__ __forceinline__ T dot_bytes(T a, T b) {  // signed bytes by unsigned ones
    T sum = 0;
    for (int place = 0; place < 8 * sizeof(T); place += 8) sum += (T)(i8)(a >> place) * (T)(u8)(b >> place);
    return sum;
}

//: shift_right unsigned_of
template <class T> __device__ __forceinline__ T shift_right(T a, T by) {
    typedef typename Unsigned<T>::type U;
    return (U)by < 8 * sizeof(T) ? (T)(a >> by) : (T)(a < 0 ? -1 : 0);
}

//: minimum
template <class T> __device__ __forceinline__ T minimum(T a, T b) { return b < a ? b : a; }

//: maximum
template <class T> __device__ __forceinline__ T maximum(T a, T b) { return a < b ? b : a; }

//: minimum.f64 bits64
__device__ __forceinline__ f64 minimum(f64 a, f64 b) {  // -0 < +0, and NaN if either is
    if (a == 0.0 && b == 0.0) return f64_of(bits_of(a) | bits_of(b));
    return a < b || a != a ? a : b;
}

//: maximum.f64 bits64
__device__ __forceinline__ f64 maximum(f64 a, f64 b) {
    if (a == 0.0 && b == 0.0) return f64_of(bits_of(a) & bits_of(b));
    return a > b || a != a ? a : b;
}

//: swizzle
template <int bits, int base, int shift, class T> __device__ __forceinline__ T swizzle(T offset) {
    return offset ^ (((offset >> shift) & ((1 << bits) - 1)) << base);
}

//: odd bits32 bits64
__device__ __forceinline__ f32 odd(f64 x) {  // of the two neighbours the one whose last bit is 1
    f32 nearest = (f32)x;
    f64 error = x - (f64)nearest;
    u32 bits = bits_of(nearest);
    if (!(fabs(error) > 0.0) || (bits & 1)) return nearest;
    return f32_of((error < 0.0) == ((bits >> 31) != 0) ? bits + 1 : bits - 1);
}

//: odd.i64
__device__ __forceinline__ f64 odd(i64 x) {
    bool fits = x < (1ll << 53) && x > -(1ll << 53);
    return (f64)(fits ? x : (x & ~0x7ffll) | ((x & 0x7ff) != 0 ? 0x800 : 0));
}

//: odd.u64
__device__ __forceinline__ f64 odd(u64 x) {
    return (f64)(x < (1ull << 53) ? x : (x & ~0x7ffull) | ((x & 0x7ff) != 0 ? 0x800 : 0));
}

//: to_f32.bf16 bf16 bits32
__device__ __forceinline__ f32 to_f32(bf16 x) { return f32_of((u32)x.bits << 16); }

//: to_f32.f8e5m2 f8e5m2 f16 to_f32.f16
__device__ __forceinline__ f32 to_f32(f8e5m2 x) { return to_f32(f16{(u16)(x.bits << 8)}); }

//: to_f32.f8e4m3 f8e4m3 f16 to_f32.f16 bits32
__device__ __forceinline__ f32 to_f32(f8e4m3 x) {  // as f16 its exponent is 8 too small
    if ((x.bits & 0x7f) == 0x7f) return f32_of(0x7fc00000u);
    return to_f32(f16{(u16)((x.bits & 0x80) << 8 | (x.bits & 0x7f) << 7)}) * 256.0f;
}

//: to_f32.tf32 bits32
__device__ __forceinline__ f32 to_f32(tf32 x) { return f32_of(bits_of(x) & 0xffffe000u); }

//: to_tf32 bits32
__device__ __forceinline__ tf32 to_tf32(f32 x) {  // the nearest, ties away from zero
    u32 bits = bits_of(x);
    return f32_of((x != x ? bits | 0x400000u : bits + 0x1000u) & 0xffffe000u);
}

//: round_f8 bits32
template <int mantissa, int bias> __device__ __forceinline__ u8 round_f8(f32 x, f32 largest) {
    u32 bits = bits_of(x), sign = bits >> 24 & 0x80;
    if (x != x) return (u8)(sign | 0x7f);
    f32 magnitude = fminf(fabsf(x), largest);
    // Below the normal numbers the last place stays where it is: adding a number of which that is the
    // last place, too, rounds there.
    const f32 smallest = f32_of((u32)(127 + 1 - bias) << 23);
    if (magnitude < smallest) {
        const f32 shift = f32_of((u32)(127 + 1 - bias - mantissa + 23) << 23);
        return (u8)(sign | (bits_of(magnitude + shift) & 0xff));
    }
    u32 number = bits_of(magnitude), dropped = 23 - mantissa;
    number += (1u << (dropped - 1)) - 1 + (number >> dropped & 1);
    return (u8)(sign | ((number >> dropped) - ((u32)(127 - bias) << mantissa)));
}

//: to_f8e4m3.software round_f8 f8e4m3
__device__ __forceinline__ f8e4m3 to_f8e4m3(f32 x) { return f8e4m3{round_f8<3, 7>(x, 448.0f)}; }

//: to_f8e5m2.software round_f8 f8e5m2
__device__ __forceinline__ f8e5m2 to_f8e5m2(f32 x) { return f8e5m2{round_f8<2, 15>(x, 57344.0f)}; }

//: to_integer
template <class I, class F> __device__ __forceinline__ I to_integer(F x, F lower, F upper) {
    const bool is_signed = (I)-1 < 0;  // toward zero, saturating; NaN is 0
    const I most = (I)(is_signed ? ((u64)1 << (8 * sizeof(I) - 1)) - 1 : ~(u64)0);
    if (x >= upper) return most;
    if (x < lower) return is_signed ? (I)(-most - 1) : (I)0;
    return x != x ? (I)0 : (I)x;
}

//: fill
template <class T, int n> __device__ __forceinline__ void fill(T (&to)[n], T value) {
    #pragma unroll
    for (int i = 0; i < n; ++i) to[i] = value;
}

//: sigmoid
__device__ __forceinline__ f32 sigmoid(f32 x) {
    f32 power = expf(-fabsf(x));  // never overflows
    return (x < 0.0f ? power : 1.0f) / (1.0f + power);
}

//: sigmoid.f64
__device__ __forceinline__ f64 sigmoid(f64 x) {
    f64 power = exp(-fabs(x));
    return (x < 0.0 ? power : 1.0) / (1.0 + power);
}

//: fast_exp2.f64
__device__ __forceinline__ f64 fast_exp2(f64 x) { return exp2(x); }

//: gelu
__device__ __forceinline__ f32 gelu(f32 x) { return x * normcdff(x); }

//: gelu.f64
__device__ __forceinline__ f64 gelu(f64 x) { return x * normcdf(x); }

//: words
template <int bytes> struct Words;
template <> struct Words<2> { typedef u16 type; };
template <> struct Words<4> { typedef u32 type; };
template <> struct Words<8> { typedef uint2 type; };
template <> struct Words<16> { typedef uint4 type; };

//: load_vector words
template <class T, int n> __device__ __forceinline__ void load_vector(T (&to)[n], const T* from) {
    const int step = n * sizeof(T) < 16 ? n : 16 / (int)sizeof(T);
    typedef typename Words<step * sizeof(T)>::type Whole;
    #pragma unroll
    for (int i = 0; i < n; i += step) {
        union { Whole whole; T parts[step]; } one;
        one.whole = *(const Whole*)(from + i);
        #pragma unroll
        for (int j = 0; j < step; ++j) to[i + j] = one.parts[j];
    }
}

//: store_vector words
template <class T, class Offset, int n>
__device__ __forceinline__ void store_vector(T* to, Offset at, const T (&from)[n]) {
    const int step = n * sizeof(T) < 16 ? n : 16 / (int)sizeof(T);
    typedef typename Words<step * sizeof(T)>::type Whole;
    #pragma unroll
    for (int i = 0; i < n; i += step) {
        union { Whole whole; T parts[step]; } one;
        #pragma unroll
        for (int j = 0; j < step; ++j) one.parts[j] = from[i + j];
        // Of a sum of 64 bits the compiler doesn't see that it is aligned, and would store piece by piece.
        if (sizeof(Offset) == 8) ((Whole*)to)[(u64)at / step + i / step] = one.whole;
        else *(Whole*)(to + at + i) = one.whole;
    }
}
