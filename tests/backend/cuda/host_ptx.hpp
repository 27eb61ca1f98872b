// Instructions of PTX, by their names, as its manual describes them: numbers, barriers, and asynchronous copies.
// Operands come in the order of the manual; an address is a number, also that of a generic place.

namespace ptx {

struct Sink { template <class T> void operator=(T) const {} };
static const Sink sink;

// Predicates.

template <class T, class N> void setp_ne_b32(T& to, u32 a, N b) { to = a != (u32)b; }
template <class T, class A, class B> void selp_u32(T& to, A a, B b, bool first) { to = first ? (u32)a : (u32)b; }

// Numbers.

static _Float16 half_of(u16 bits) { _Float16 x; memcpy(&x, &bits, 2); return x; }
static u16 bits_of_half(_Float16 x) { u16 bits; memcpy(&bits, &x, 2); return bits; }
static f32 of_bits(u32 bits) { f32 x; memcpy(&x, &bits, 4); return x; }
static u32 bits_of(f32 x) { u32 bits; memcpy(&bits, &x, 4); return bits; }

static f32 smaller(f32 a, f32 b) {
    if (a != a || b != b) return a + b;
    return a < b || (a == b && std::signbit(a)) ? a : b;
}
static f32 larger(f32 a, f32 b) { return a != a || b != b ? a + b : -smaller(-a, -b); }

static u16 to_bf16(f32 x) {
    u32 bits = bits_of(x);
    return x != x ? 0x7fff : (u16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
static f32 from_bf16(u16 bits) { return of_bits((u32)bits << 16); }

// Of the two f32 about a sum of an exact product the one whose last bit is 1, unless the sum is an f32.
static f32 odd_sum(f64 product, f64 addend) {
    f64 sum = product + addend, of_addend = sum - product;
    f64 error = (product - (sum - of_addend)) + (addend - of_addend);
    f32 nearest = (f32)sum;
    if (sum != sum || std::isinf(nearest)) return nearest;
    f64 beyond = (sum - (f64)nearest) + error;
    if (beyond == 0.0 || bits_of(nearest) & 1) return nearest;
    if (nearest == 0.0f) return of_bits(beyond < 0.0 ? 0x80000001u : 1u);
    return of_bits((beyond < 0.0) == std::signbit(nearest) ? bits_of(nearest) + 1 : bits_of(nearest) - 1);
}

static void min_NaN_f32(f32& to, f32 a, f32 b) { to = smaller(a, b); }
static void max_NaN_f32(f32& to, f32 a, f32 b) { to = larger(a, b); }
// The manual allows a relative error of 2**-22.5; here the last bit is lost. Subnormals are 0.
static void ex2_approx_ftz_f32(f32& to, f32 a) {
    f32 power = std::exp2(std::fpclassify(a) == FP_SUBNORMAL ? 0.0f : a);
    to = std::fpclassify(power) == FP_SUBNORMAL ? 0.0f : std::isnormal(power) ? of_bits(bits_of(power) & ~1u) : power;
}
static void prmt_b32(u32& to, u32 a, u32 b, u32 selected) {
    const u64 bytes = (u64)b << 32 | a;
    to = 0;
    for (int i = 0; i < 4; ++i) to |= (u32)(bytes >> 8 * (selected >> 4 * i & 7) & 0xff) << 8 * i;
}
static void lop3_b32(u32& to, u32 a, u32 b, u32 c, u32 table) {
    to = 0;
    for (int i = 0; i < 32; ++i) {
        const u32 row = (a >> i & 1) << 2 | (b >> i & 1) << 1 | (c >> i & 1);
        to |= (table >> row & 1) << i;
    }
}
// The manual allows an error of one unit in the last place; subnormals are 0 before and behind.
static void rcp_approx_ftz_f32(f32& to, f32 a) {
    f32 inverse = 1.0f / (std::fpclassify(a) == FP_SUBNORMAL ? std::copysign(0.0f, a) : a);
    to = std::fpclassify(inverse) == FP_SUBNORMAL ? std::copysign(0.0f, inverse)
        : std::isnormal(inverse) ? of_bits(bits_of(inverse) ^ 1u) : inverse;
}
static void cvt_f32_f16(f32& to, u16 a) { to = (f32)half_of(a); }
static void cvt_rn_f16_f32(u16& to, f32 a) { to = bits_of_half((_Float16)a); }
static void cvt_rn_bf16_f32(u16& to, f32 a) { to = to_bf16(a); }
static void add_rn_f16(u16& to, u16 a, u16 b) { to = bits_of_half((_Float16)((f32)half_of(a) + (f32)half_of(b))); }
static void sub_rn_f16(u16& to, u16 a, u16 b) { to = bits_of_half((_Float16)((f32)half_of(a) - (f32)half_of(b))); }
static void mul_rn_f16(u16& to, u16 a, u16 b) { to = bits_of_half((_Float16)((f32)half_of(a) * (f32)half_of(b))); }
static void fma_rn_f16(u16& to, u16 a, u16 b, u16 c) {
    to = bits_of_half((_Float16)((f64)half_of(a) * (f64)half_of(b) + (f64)half_of(c)));  // the sum is exact
}
static void min_NaN_f16(u16& to, u16 a, u16 b) { to = bits_of_half((_Float16)smaller(half_of(a), half_of(b))); }
static void max_NaN_f16(u16& to, u16 a, u16 b) { to = bits_of_half((_Float16)larger(half_of(a), half_of(b))); }
static void fma_rn_bf16(u16& to, u16 a, u16 b, u16 c) {
    to = to_bf16(odd_sum((f64)from_bf16(a) * (f64)from_bf16(b), from_bf16(c)));
}
static void min_NaN_bf16(u16& to, u16 a, u16 b) { to = to_bf16(smaller(from_bf16(a), from_bf16(b))); }
static void max_NaN_bf16(u16& to, u16 a, u16 b) { to = to_bf16(larger(from_bf16(a), from_bf16(b))); }

// The nearest of all numbers of 8 bits, the even one of two; their order is that of their bits.
template <class Of> u8 nearest_f8(f32 x, u8 largest, Of number_of) {
    if (x != x) return 0x7f;
    u8 best = 0;
    for (int bits = 0; bits <= largest; ++bits) {
        f64 here = fabs(fabs((f64)x) - number_of(bits)), there = fabs(fabs((f64)x) - number_of(best));
        if (here < there || (here == there && bits % 2 == 0)) best = (u8)bits;
    }
    return (u8)(best | std::signbit(x) << 7);
}
static f64 number_of_f8(u32 bits, int mantissa, int bias) {
    int exponent = (int)(bits & 0x7f) >> mantissa, fraction = bits & ((1 << mantissa) - 1);
    f64 value = exponent ? ldexp((1 << mantissa) + fraction, exponent - bias - mantissa)
                         : ldexp(fraction, 1 - bias - mantissa);
    return bits & 0x80 ? -value : value;
}
static f64 number_of_e4m3(u32 bits) { return (bits & 0x7f) == 0x7f ? NAN : number_of_f8(bits, 3, 7); }
static f64 number_of_e5m2(u32 bits) {
    f64 value = number_of_f8(bits, 2, 15);
    return (bits & 0x7f) < 0x7c ? value : (bits & 3) ? NAN : value < 0 ? -INFINITY : INFINITY;
}
static void cvt_rn_satfinite_e4m3x2_f32(u16& to, f32 high, f32 low) {
    to = (u16)(nearest_f8(high, 0x7e, number_of_e4m3) << 8 | nearest_f8(low, 0x7e, number_of_e4m3));
}
static void cvt_rn_satfinite_e5m2x2_f32(u16& to, f32 high, f32 low) {
    to = (u16)(nearest_f8(high, 0x7b, number_of_e5m2) << 8 | nearest_f8(low, 0x7b, number_of_e5m2));
}

// Barriers of a number, and of a cluster.

static void bar_sync(int number, int count) {
    host::require(number > 0 && number < 16 && count % 32 == 0, "there is no such barrier");
    host::meet(host::block().named[number], count);
}
static void bar_arrive(int number, int count) {
    host::require(number > 0 && number < 16 && count % 32 == 0, "there is no such barrier");
    host::come(host::block().named[number], count);
}
static void barrier_cluster_arrive_release() {
    host::Meeting& all = host::cluster_meeting;
    host::require(!host::fiber().has_come, "a thread comes to the barrier of the cluster twice");
    host::fiber().has_come = true;
    host::fiber().cluster_turn = all.turn;
    if (++all.come < (int)host::fibers.size()) return;
    all.come = 0;
    ++all.turn;
    ++host::progress;
}
static void barrier_cluster_wait_acquire() {
    while (host::cluster_meeting.turn == host::fiber().cluster_turn) host::yield();
    host::fiber().has_come = false;
}

// Barriers in memory. A phase is over when none of its arrivals and none of its bytes is left.

const i64 MOST_COUNTED = (1 << 20) - 1;
struct Mbarrier { u64 left : 20, all : 20, phase : 1; i64 bytes : 22; };
static_assert(sizeof(Mbarrier) == 8, "as much as one takes");
static Mbarrier* mbarrier(u32 address) {
    host::require(address % 8 == 0, "an mbarrier has the alignment of its 8 bytes");
    return (Mbarrier*)host::seen(address, 8);
}
static void came(Mbarrier* one, u32 arrivals, i32 bytes) {
    host::require(arrivals <= one->left, "there are more arrivals at an mbarrier than it waits for");
    ++host::progress;
    i64 missing = one->bytes + bytes;
    host::require(missing >= -MOST_COUNTED && missing <= MOST_COUNTED, "an mbarrier doesn't count so many bytes");
    one->left -= arrivals;
    one->bytes = missing;
    if (one->left || one->bytes) return;
    one->left = one->all;
    one->phase ^= 1;
}
static void mbarrier_init_shared_b64(u32 address, u32 arrivals) {
    host::require(arrivals > 0 && arrivals <= MOST_COUNTED, "an mbarrier doesn't count so many arrivals");
    Mbarrier made = {arrivals, arrivals, 0, 0};
    std::vector<u32>& known = host::block().mbarriers;
    u32 offset = address & 0xffffff;
    bool is_new = std::find(known.begin(), known.end(), offset) == known.end();
    host::require(is_new, "an mbarrier is set up where there is one, which wasn't invalidated");
    memcpy(mbarrier(address), &made, sizeof(made));
    known.push_back(offset);
}
static void mbarrier_inval_shared_b64(u32 address) {
    std::vector<u32>& known = host::block().mbarriers;
    auto found = std::find(known.begin(), known.end(), address & 0xffffff);
    host::require(found != known.end(), "there is no mbarrier to invalidate");
    known.erase(found);
}
template <class T> void mbarrier_arrive_shared_b64(T& to, u32 address) { came(mbarrier(address), 1, 0); }
template <class T> void mbarrier_arrive_release_cluster_shared_cluster_b64(T& to, u32 address) {
    came(mbarrier(address), 1, 0);
}
template <class T> void mbarrier_arrive_relaxed_cluster_shared_cluster_b64(T& to, u32 address) {
    came(mbarrier(address), 1, 0);
}
template <class T> void mbarrier_arrive_expect_tx_shared_cta_b64(T& to, u32 address, u32 bytes) {
    came(mbarrier(address), 1, (i32)bytes);
}
template <class T>
void mbarrier_arrive_expect_tx_release_cluster_shared_cluster_b64(T& to, u32 address, u32 bytes) {
    came(mbarrier(address), 1, (i32)bytes);
}
static void mbarrier_test_wait_parity_shared_b64(bool& is_over, u32 address, u32 parity) {
    is_over = mbarrier(address)->phase != parity;
    u64 looked = is_over ? 0 : (u64)address << 8 | parity << 1 | 1, before = host::fiber().looked;
    host::fiber().looked = looked;
    if (is_over) return;
    if (looked == before) host::look_again();
    else host::yield();
}
static void mbarrier_try_wait_parity_shared_cta_b64(bool& is_over, u32 address, u32 parity) {
    mbarrier_test_wait_parity_shared_b64(is_over, address, parity);
}
static void mbarrier_try_wait_parity_acquire_cluster_shared_cta_b64(bool& is_over, u32 address, u32 parity) {
    mbarrier_test_wait_parity_shared_b64(is_over, address, parity);
}
static void fence_mbarrier_init_release_cluster() {}

// The device's clock: it goes on while all threads wait.
static u32 clock_now() { host::asked_time = true; return 1 + host::late; }
#define __globaltimer_hi ptx::clock_now()
static void mov_u32(u32& to, u32 from) { to = from; }
static void trap() { host::refuse("a trap was met"); }

// A word of global memory, of all blocks.

static void atom_acq_rel_gpu_add_u32(u32& before, u64 address, u32 value) {
    before = *(u32*)address;
    *(u32*)address += value;
    ++host::progress;
}
static void ld_acquire_gpu_u32(u32& to, u64 address) {
    host::yield();  // to those whom it may be waiting for
    to = *(u32*)address;
}

static void ld_acquire_gpu_u64(u64& to, u64 address) {
    host::yield();
    to = *(u64*)address;
}
static void st_release_gpu_u32(u64 address, u32 value) {
    *(u32*)address = value;
    ++host::progress;
}
static void st_release_gpu_u64(u64 address, u64 value) {
    *(u64*)address = value;
    ++host::progress;
}
static void fence_acq_rel_cta() {}  // threads take turns, in one order for all
static void fence_acq_rel_gpu() {}

// The other blocks of a cluster.

static void mapa_shared_cluster_u32(u32& to, u32 address, u32 rank) {
    host::require(rank < host::blocks.size(), "there is no block of this rank in the cluster");
    to = rank << 24 | (address & 0xffffff);
}
static void mapa_u64(u64& to, u64 place, u32 rank) {
    host::require(rank < host::blocks.size(), "there is no block of this rank in the cluster");
    to = place + (i64)((int)rank - host::rank()) * (i64)sizeof(host::Memory);
}

// Copies by each thread, in its groups.

static void copied(int bytes, u32 to, u64 from, u32 read) {
    host::require(to % bytes == 0 && (!read || from % bytes == 0), "a copy is not aligned");
    std::array<u8, 16> taken = {};
    if (read) memcpy(taken.data(), (const void*)from, read);
    u8* place = host::seen(to, bytes);
    host::Action copy = [=] {
        host::stored(place, bytes);
        memcpy(place, taken.data(), bytes);
    };
    if (host::is_early()) copy();
    host::fiber().copies.push_back(copy);
}
static void cp_async_cg_shared_global(u32 to, u64 from, int bytes, u32 read) { copied(bytes, to, from, read); }
static void cp_async_ca_shared_global(u32 to, u64 from, int bytes, u32 read) { copied(bytes, to, from, read); }

static void commit(std::vector<host::Action>& open, std::vector<host::Group>& groups) {
    groups.push_back({open});
    open.clear();
}
static void wait(std::vector<host::Group>& groups, int most) {
    while ((int)groups.size() > most) {
        for (host::Action& action : groups.front().actions) action();
        groups.erase(groups.begin());
    }
}
static void cp_async_commit_group() { commit(host::fiber().copies, host::fiber().copy_groups); }
static void cp_async_wait_group(int most) { wait(host::fiber().copy_groups, most); }

// Bulk copies of boxes. What the driver encodes in a map is here:

struct TensorMap {
    u8* data;
    i64 extents[5];                                // innermost first, as all of them
    i32 box[5], rank, size, swizzle;
    i32 outputs[2], strides[2], padding[2];        // of pixels; of rows and columns
    u8 rest[24];
};
static_assert(sizeof(TensorMap) == 128, "as a map has");

// Where the n-th element of a copy lies in shared memory.
static u32 swizzled(const TensorMap& map, u32 offset, i64 n) {
    int bits = map.swizzle == 128 ? 3 : map.swizzle == 64 ? 2 : map.swizzle == 32 ? 1 : 0;
    u32 near = offset + (u32)(n * map.size);
    return near ^ (near >> 7 & ((1 << bits) - 1)) << 4;  // of 16 bytes within lines of 128
}
// Calls `move(in shared memory, in the tensor or null)` for each element of a box.
template <class F> void each_of_box(const TensorMap& map, u32 offset, std::array<i32, 5> at, F move) {
    i64 count = 1;
    for (int d = 0; d < map.rank; ++d) count *= map.box[d];
    for (i64 n = 0; n < count; ++n) {
        i64 rest = n, place = 0, stride = 1;
        bool inside = true;
        for (int d = 0; d < map.rank; ++d) {
            i64 x = at[d] + rest % map.box[d];
            rest /= map.box[d];
            inside = inside && x >= 0 && x < map.extents[d];
            place += x * stride;
            stride *= map.extents[d];
        }
        move(swizzled(map, offset, n), inside ? map.data + place * map.size : nullptr);
    }
}
// The same of pixels: columns, rows and images are counted up within the map's corners, in the filter's strides; what
// is copied lies `taps` beside and below where a filter begins.
template <class F>
void each_of_pixels(const TensorMap& map, u32 offset, std::array<i32, 5> at, std::array<i32, 2> taps, F move) {
    auto [channel, column, row, image, unused] = at;
    i32 last_row = (map.outputs[0] - 1) * map.strides[0] - map.padding[0];
    i32 last_column = (map.outputs[1] - 1) * map.strides[1] - map.padding[1];
    i64 n = 0;
    for (i32 pixel = 0; pixel < map.box[1]; ++pixel) {
        i64 i = row + taps[1], j = column + taps[0];
        bool inside = image < map.extents[3] && i >= 0 && i < map.extents[2] && j >= 0 && j < map.extents[1];
        for (i32 q = channel; q < channel + map.box[0]; ++q, ++n) {
            i64 far = ((image * map.extents[2] + i) * map.extents[1] + j) * map.extents[0] + q;
            move(swizzled(map, offset, n), inside && q < map.extents[0] ? map.data + far * map.size : nullptr);
        }
        if ((column += map.strides[1]) <= last_column) continue;
        column = -map.padding[1];
        if ((row += map.strides[0]) <= last_row) continue;
        row = -map.padding[0], ++image;
    }
}
static i64 checked(const TensorMap& map, u32 address, int dimensions_of_box) {
    i64 bytes = map.size, stride = map.size, inner = map.box[0] * map.size;
    for (int d = 0; d < dimensions_of_box; ++d) bytes *= map.box[d];
    for (int d = 0; d < map.rank; ++d) {
        stride *= map.extents[d];
        host::require(d == map.rank - 1 || stride % 16 == 0, "the strides of a map are multiples of 16 bytes");
    }
    host::require((u64)map.data % 16 == 0, "a map's tensor begins at a multiple of 16 bytes");
    host::require(address % 128 == 0, "a box begins at a multiple of 128 bytes");
    host::require(inner % 16 == 0, "rows of a box are multiples of 16 bytes");
    host::require(!map.swizzle || inner == map.swizzle, "rows of a box are as long as what is swizzled");
    return bytes;
}
template <int rank, size_t n> std::array<i32, 5> coordinates(std::array<const u32*, n> given) {
    static_assert(n == rank, "a coordinate for each dimension");
    std::array<i32, 5> at = {};
    for (int d = 0; d < rank; ++d) at[d] = (i32)*given[d];
    return at;
}
static TensorMap map_at(u64 address, int rank) {
    TensorMap map;
    memcpy(&map, (const void*)address, sizeof(map));
    host::require(map.rank == rank, "a map has the dimensions of its copy");
    return map;
}
static void prefetch_tensormap(u64 map) { host::require(map % 64 == 0, "a map lies at a multiple of 64 bytes"); }
// A copy of so many bytes to the blocks of some ranks; `each(offset, move)` goes through its elements.
template <class Each>
void load(u32 to, const TensorMap& map, i64 bytes, u32 barrier, u32 ranks, Each each) {
    host::rank_of(to), host::offset_of(to, bytes);
    for (u32 r = 0; r < 16; ++r) {
        if (!(ranks >> r & 1)) continue;
        host::Action copy = [=] {
            const u32 there = r << 24;
            host::seen(there | (to & 0xffffff), bytes);
            each(to & 0xffffff, [&](u32 near, const u8* far) {
                host::brought(r, near, far, map.size);
            });
            came(mbarrier(there | (barrier & 0xffffff)), 0, -(i32)bytes);
        };
        if (host::is_early()) copy();
        else host::copies.push_back(copy);
    }
}
template <int rank, class List>
void cp_async_bulk_tensor_shared_cluster_global_mbarrier_complete_tx_bytes_multicast_cluster(
    u32 to, u64 at_map, List given, u32 barrier, u32 ranks) {
    TensorMap map = map_at(at_map, rank);
    auto at = coordinates<rank>(given);
    load(to, map, checked(map, to, rank), barrier, ranks, [=](u32 offset, auto move) {
        each_of_box(map, offset, at, move);
    });
}
template <int rank, class List, class Taps>
void cp_async_bulk_tensor_shared_cluster_global_im2col_mbarrier_complete_tx_bytes(
    u32 to, u64 at_map, List given, u32 barrier, Taps given_taps) {
    static_assert(rank == 4, "of images");
    TensorMap map = map_at(at_map, rank);
    auto at = coordinates<rank>(given);
    std::array<i32, 2> taps = {*given_taps[0], *given_taps[1]};
    load(to, map, checked(map, to, 2), barrier, 1u << (to >> 24), [=](u32 offset, auto move) {
        each_of_pixels(map, offset, at, taps, move);
    });
}
template <int rank, class List>
void cp_async_bulk_tensor_shared_cluster_global_mbarrier_complete_tx_bytes(
    u32 to, u64 map, List at, u32 barrier) {
    host::require(to >> 24 == barrier >> 24, "the mbarrier of a copy is where it goes");
    cp_async_bulk_tensor_shared_cluster_global_mbarrier_complete_tx_bytes_multicast_cluster<rank>(
        to, map, at, barrier, 1u << (to >> 24));
}
template <int rank, class List>
void cp_async_bulk_tensor_global_shared_cta_bulk_group(u64 at_map, List given, u32 from) {
    TensorMap map = map_at(at_map, rank);
    i64 bytes = checked(map, from, rank);
    auto at = coordinates<rank>(given);
    const u8* view = host::asynchronous(from, bytes) - (from & 0xffffff);
    host::Action copy = [=] {
        each_of_box(map, from & 0xffffff, at, [&](u32 near, u8* far) {
            if (far) memcpy(far, view + near, map.size);
        });
    };
    if (host::is_early()) copy();
    else host::fiber().stores.push_back(copy);
}
static void cp_async_bulk_commit_group() { commit(host::fiber().stores, host::fiber().store_groups); }
static void cp_async_bulk_wait_group_read(int most) { wait(host::fiber().store_groups, most); }

static void fence_proxy_async_shared_cta() {
    host::fence_stores();
}

static void nanosleep_u32(u32) {}

// How many registers a warpgroup has doesn't matter here, but all of it says so.
static void changes_registers() {
    host::require(host::thread() / 128 * 128 + 128 <= host::threads, "registers are a whole warpgroup's");
    host::meet(host::block().registers[host::thread() / 128], 128, (void*)7);
}
static void setmaxnreg_dec_sync_aligned_u32(int) { changes_registers(); }
static void setmaxnreg_inc_sync_aligned_u32(int) { changes_registers(); }

}  // namespace ptx
