//: bits32
static u32 bits_of(f32 x) { u32 bits; memcpy(&bits, &x, 4); return bits; }
static f32 f32_of(u32 bits) { f32 x; memcpy(&x, &bits, 4); return x; }

//: bits64
static u64 bits_of(f64 x) { u64 bits; memcpy(&bits, &x, 8); return bits; }
static f64 f64_of(u64 bits) { f64 x; memcpy(&x, &bits, 8); return x; }

//: minimum.f32
static f32 minimum(f32 a, f32 b) {
    if (a != a || b != b) return a + b;
    return a < b || (a == b && std::signbit(a)) ? a : b;
}

//: maximum.f32
static f32 maximum(f32 a, f32 b) {
    if (a != a || b != b) return a + b;
    return a > b || (a == b && !std::signbit(a)) ? a : b;
}

//: to_f32.f16 f16
static f32 to_f32(f16 x) { _Float16 half; memcpy(&half, &x, 2); return (f32)half; }

//: to_f16 f16
static f16 to_f16(f32 x) { _Float16 half = (_Float16)x; f16 result; memcpy(&result, &half, 2); return result; }

//: to_bf16 bf16
static bf16 to_bf16(f32 x) {
    u32 bits;
    memcpy(&bits, &x, 4);
    if (x != x) return bf16{0x7fff};
    return bf16{(u16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

//: add.f16 to_f32.f16 to_f16
static f16 add(f16 a, f16 b) { return to_f16(to_f32(a) + to_f32(b)); }

//: subtract.f16 to_f32.f16 to_f16
static f16 subtract(f16 a, f16 b) { return to_f16(to_f32(a) - to_f32(b)); }

//: multiply.f16 to_f32.f16 to_f16
static f16 multiply(f16 a, f16 b) { return to_f16(to_f32(a) * to_f32(b)); }

//: fma.f16 to_f32.f16
static f16 fma(f16 a, f16 b, f16 c) {
    f64 sum = (f64)to_f32(a) * (f64)to_f32(b) + (f64)to_f32(c);  // no midpoint is hit by chance: see rounding.py
    _Float16 half = (_Float16)sum;
    f16 result;
    memcpy(&result, &half, 2);
    return result;
}

//: minimum.f16 to_f32.f16 to_f16 minimum.f32
static f16 minimum(f16 a, f16 b) { return to_f16(minimum(to_f32(a), to_f32(b))); }

//: maximum.f16 to_f32.f16 to_f16 maximum.f32
static f16 maximum(f16 a, f16 b) { return to_f16(maximum(to_f32(a), to_f32(b))); }

//: fma.bf16 to_f32.bf16 to_bf16 odd
static bf16 fma(bf16 a, bf16 b, bf16 c) {
    // The product is exact in f64, and the sum to odd in f80, which has enough bits more.
    f64 product = (f64)to_f32(a) * (f64)to_f32(b), addend = (f64)to_f32(c);
    f64 sum = product + addend, of_addend = sum - product;
    f64 error = (product - (sum - of_addend)) + (addend - of_addend);
    u64 bits;
    memcpy(&bits, &sum, 8);
    if (error != 0.0 && error == error && !(bits & 1)) bits += (error < 0.0) == (sum < 0.0) ? 1 : -1;
    memcpy(&sum, &bits, 8);
    return to_bf16(odd(sum));
}

//: minimum.bf16 to_f32.bf16 to_bf16 minimum.f32
static bf16 minimum(bf16 a, bf16 b) { return to_bf16(minimum(to_f32(a), to_f32(b))); }

//: maximum.bf16 to_f32.bf16 to_bf16 maximum.f32
static bf16 maximum(bf16 a, bf16 b) { return to_bf16(maximum(to_f32(a), to_f32(b))); }

//: shuffle words_of
template <class T, class F> static T exchanged(T value, F source) {
    host::slots[host::current] = bits_as<u64>(value);
    host::meet_warp();
    int lane = source(host::lane());
    bool is_there = lane >= 0 && lane < host::warp_size();
    T other = is_there ? bits_as<T>(host::slots[host::current / 32 * 32 + lane]) : value;
    host::meet_warp();
    return other;
}

//: shuffle_xor shuffle
template <class T> static T shuffle_xor(T value, i64 n) { return exchanged(value, [=](i64 l) { return l ^ n; }); }

//: shuffle_index shuffle
template <class T> static T shuffle_index(T value, i64 n) { return exchanged(value, [=](i64 l) { return n & 31; }); }

//: shuffle_up shuffle
template <class T> static T shuffle_up(T value, i64 n) { return exchanged(value, [=](i64 l) { return l - n; }); }

//: shuffle_down shuffle
template <class T> static T shuffle_down(T value, i64 n) { return exchanged(value, [=](i64 l) { return l + n; }); }

//: vote_ballot
static u32 vote_ballot(bool holds) {
    host::slots[host::current] = holds;
    host::meet_warp();
    u32 bits = 0;
    for (int i = 0; i < host::warp_size(); ++i) bits |= (u32)host::slots[host::current / 32 * 32 + i] << i;
    host::meet_warp();
    return bits;
}

//: vote_any vote_ballot
static bool vote_any(bool holds) { return vote_ballot(holds) != 0; }

//: vote_all vote_ballot
static bool vote_all(bool holds) { return vote_ballot(!holds) == 0; }

//: of_first_lane
static i32 of_first_lane(i32 x) { return x; }

//: barrier_named
template <int number, int threads> static void barrier_named() { host::meet(host::named_meetings[number], threads); }

//: shared_address
static u32 shared_address(const void* place) { return (u32)((const u8*)place - shared_memory); }

//: cp_async
template <int bytes> static void cp_async(void* to, const void* from, bool reads) {
    host::Copy copy = {to, {0}, bytes};
    if ((u64)to % bytes || (reads && (u64)from % bytes)) abort();
    if (reads) memcpy(copy.bytes, from, bytes);
    host::fibers[host::current].open.push_back(copy);
}

//: cp_async_commit
static void cp_async_commit() {
    host::Fiber& fiber = host::fibers[host::current];
    fiber.groups.push_back(fiber.open);
    fiber.open.clear();
}

//: cp_async_wait
template <int most> static void cp_async_wait() {
    auto& groups = host::fibers[host::current].groups;
    while ((int)groups.size() > most) {
        for (host::Copy& copy : groups.front()) memcpy(copy.to, copy.bytes, copy.size);
        groups.erase(groups.begin());
    }
}

//: mbarriers
struct Mbarrier { u32 left : 12, all : 12, phase : 1; int bytes; };
static void advance(Mbarrier* one) {
    ++host::progress;
    if (one->left || one->bytes) return;
    one->left = one->all;
    one->phase ^= 1;
}

//: mbarrier_init mbarriers
static void mbarrier_init(u64* barrier, u32 arrivals) {
    Mbarrier made = {arrivals, arrivals, 0, 0};
    memcpy(barrier, &made, sizeof(made));
}

//: mbarrier_arrive mbarriers
static void mbarrier_arrive(u64* barrier) {
    Mbarrier* one = (Mbarrier*)barrier;
    --one->left;
    advance(one);
}

//: mbarrier_expect mbarriers
static void mbarrier_expect(u64* barrier, u32 bytes) {
    Mbarrier* one = (Mbarrier*)barrier;
    --one->left;
    one->bytes += bytes;
    advance(one);
}

//: mbarrier_wait mbarriers
static void mbarrier_wait(u64* barrier, u32 parity) {
    while (((Mbarrier*)barrier)->phase == (parity & 1)) host::yield();
}

//: tensor_map
struct TensorMap {
    const u8* data;
    i64 extents[5];
    i32 box[5], rank, size, swizzle;
    u8 rest[48];
};
static_assert(sizeof(TensorMap) == 128, "as a map has");

//: tma_copy tensor_map
// Innermost first, as the hardware has it; calls `copy(in shared memory, in the tensor or null)` for each element.
template <class F> static void each_of_box(u8* place, const TensorMap* map, const i32* at, F copy) {
    i64 count = 1;
    for (int d = 0; d < map->rank; ++d) count *= map->box[d];
    for (i64 n = 0; n < count; ++n) {
        i64 rest = n, offset = 0, stride = 1;
        bool inside = true;
        for (int d = 0; d < map->rank; ++d) {
            i64 x = at[d] + rest % map->box[d];
            rest /= map->box[d];
            inside = inside && x >= 0 && x < map->extents[d];
            offset += x * stride;
            stride *= map->extents[d];
        }
        u64 address = (u64)(place - shared_memory) + n * map->size;
        int bits = map->swizzle == 128 ? 3 : map->swizzle == 64 ? 2 : map->swizzle == 32 ? 1 : 0;
        address ^= (address >> 7 & ((1 << bits) - 1)) << 4;
        copy(shared_memory + address, inside ? (u8*)map->data + offset * map->size : nullptr);
    }
}

//: fence_proxy_async
static void fence_proxy_async() {}

//: tma_commit
static void tma_commit() {}

//: tma_wait
template <int most> static void tma_wait() {}

//: give_up_registers
template <int n> static void give_up_registers() {}

//: take_registers
template <int n> static void take_registers() {}

//: assertion_failed
static void assertion_failed(u32* status, u32 number) { if (!*status) *status = number; }

//: wgmma_fence
static void wgmma_fence() {}

//: wgmma_commit
static void wgmma_commit() {}

//: wgmma_wait
template <int most> static void wgmma_wait() {}

//: wgmma_operand shared_address
static u64 wgmma_operand(const void* place, u32 leading, u32 stride, u32 swizzle) {
    return (u64)leading << 16 | (u64)stride << 32 | (u64)swizzle << 62 | (shared_address(place) & 0x3ffff) >> 4;
}

//: wgmma_element
// The element (i of rows or columns, q of k) of an operand, as the PTX manual describes its layouts.
template <class T> static T wgmma_element(u64 operand, bool along_mn, i64 i, i64 q) {
    const i64 size = sizeof(T), leading = (operand >> 16 & 0x3fff) << 4, stride = (operand >> 32 & 0x3fff) << 4;
    const int mode = (int)(operand >> 62), width = mode == 1 ? 128 : mode == 2 ? 64 : mode == 3 ? 32 : 16;
    u64 at = (operand & 0x3fff) << 4;
    i64 bytes = (along_mn ? i : q) * size, other = along_mn ? q : i;
    at += other % 8 * width;
    if (!along_mn) at += other / 8 * stride + (width > 16 ? bytes : bytes / 16 * leading + bytes % 16);
    else if (width > 16) at += other / 8 * stride + bytes / width * leading + bytes % width;
    else at += other / 8 * leading + bytes / 16 * stride + bytes % 16;
    at ^= (at >> 7 & (width / 16 - 1)) << 4;
    T value;
    memcpy(&value, shared_memory + at, sizeof(T));
    return value;
}
