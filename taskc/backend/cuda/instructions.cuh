//: bits32
__device__ __forceinline__ u32 bits_of(f32 x) { return __float_as_uint(x); }
__device__ __forceinline__ f32 f32_of(u32 bits) { return __uint_as_float(bits); }

//: bits64
__device__ __forceinline__ u64 bits_of(f64 x) { return (u64)__double_as_longlong(x); }
__device__ __forceinline__ f64 f64_of(u64 bits) { return __longlong_as_double((i64)bits); }

//: minimum.f32
__device__ __forceinline__ f32 minimum(f32 a, f32 b) {  // -0 < +0, and NaN if either is
    f32 result;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
    return result;
}

//: maximum.f32
__device__ __forceinline__ f32 maximum(f32 a, f32 b) {
    f32 result;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
    return result;
}

//: fast_exp2
__device__ __forceinline__ f32 fast_exp2(f32 x) {
    f32 result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}

//: fast_sigmoid fast_exp2
__device__ __forceinline__ f32 fast_sigmoid(f32 x) {  // within 2^-17 of its magnitude; may be 0 below 2^-122
    f32 result;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(1.0f + fast_exp2(x * -1.44269504f)));
    return result;
}

//: times_normal fast_exp2
// x Phi(x), if 2^exponent is Phi(-|x|): a polynomial in |x| that falls to -inf, so that infinities come out as they are.
__device__ __forceinline__ f32 times_normal(f32 x, f32 exponent) {
    f32 tail = fast_exp2(exponent);
    return x * (x > 0.0f ? 1.0f - tail : tail);
}

//: gelu_for_f16 times_normal
// Within 2^-13.4 of its magnitude, or of 2^-14 where it is less than that, the least normal number of f16.
__device__ __forceinline__ f32 gelu_for_f16(f32 x) {
    f32 size = fabsf(x);
    f32 sum = __fmaf_rn(size, -3.20521183e-4f, 5.82741713e-3f);
    sum = __fmaf_rn(size, sum, -4.82378528e-2f);
    sum = __fmaf_rn(size, sum, -4.64119732e-1f);
    sum = __fmaf_rn(size, sum, -1.14917684f);
    return times_normal(x, __fmaf_rn(size, sum, -1.00012064f));
}

//: gelu_for_bf16 times_normal
// Within 2^-10.8 of its magnitude; it may be 0 where that is below 2^-122.
__device__ __forceinline__ f32 gelu_for_bf16(f32 x) {
    f32 size = fabsf(x);
    f32 sum = __fmaf_rn(size, -3.19481103e-7f, 1.78167793e-5f);
    sum = __fmaf_rn(size, sum, -4.18454176e-4f);
    sum = __fmaf_rn(size, sum, 5.45583432e-3f);
    sum = __fmaf_rn(size, sum, -4.44067046e-2f);
    sum = __fmaf_rn(size, sum, -4.72945988e-1f);
    sum = __fmaf_rn(size, sum, -1.14293265f);
    return times_normal(x, __fmaf_rn(size, sum, -1.00078189f));
}

//: to_f32.f16 f16
__device__ __forceinline__ f32 to_f32(f16 x) {
    f32 result;
    asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(x.bits));
    return result;
}

//: to_f16 f16
__device__ __forceinline__ f16 to_f16(f32 x) {
    f16 result;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result.bits) : "f"(x));
    return result;
}

//: to_bf16 bf16
__device__ __forceinline__ bf16 to_bf16(f32 x) {
    bf16 result;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result.bits) : "f"(x));
    return result;
}

//: to_f8e4m3 f8e4m3
__device__ __forceinline__ f8e4m3 to_f8e4m3(f32 x) {
    u16 pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(x));
    return f8e4m3{(u8)pair};
}

//: to_f8e5m2 f8e5m2
__device__ __forceinline__ f8e5m2 to_f8e5m2(f32 x) {
    u16 pair;
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(x));
    return f8e5m2{(u8)pair};
}

//: add.f16 f16
__device__ __forceinline__ f16 add(f16 a, f16 b) {
    f16 result;
    asm("add.rn.f16 %0, %1, %2;" : "=h"(result.bits) : "h"(a.bits), "h"(b.bits));
    return result;
}

//: subtract.f16 f16
__device__ __forceinline__ f16 subtract(f16 a, f16 b) {
    f16 result;
    asm("sub.rn.f16 %0, %1, %2;" : "=h"(result.bits) : "h"(a.bits), "h"(b.bits));
    return result;
}

//: multiply.f16 f16
__device__ __forceinline__ f16 multiply(f16 a, f16 b) {
    f16 result;
    asm("mul.rn.f16 %0, %1, %2;" : "=h"(result.bits) : "h"(a.bits), "h"(b.bits));
    return result;
}

//: fma.f16 f16
__device__ __forceinline__ f16 fma(f16 a, f16 b, f16 c) {
    f16 result;
    asm("fma.rn.f16 %0, %1, %2, %3;" : "=h"(result.bits) : "h"(a.bits), "h"(b.bits), "h"(c.bits));
    return result;
}

//: minimum.f16 f16
__device__ __forceinline__ f16 minimum(f16 a, f16 b) {
    f16 result;
    asm("min.NaN.f16 %0, %1, %2;" : "=h"(result.bits) : "h"(a.bits), "h"(b.bits));
    return result;
}

//: maximum.f16 f16
__device__ __forceinline__ f16 maximum(f16 a, f16 b) {
    f16 result;
    asm("max.NaN.f16 %0, %1, %2;" : "=h"(result.bits) : "h"(a.bits), "h"(b.bits));
    return result;
}

//: fma.bf16 bf16
__device__ __forceinline__ bf16 fma(bf16 a, bf16 b, bf16 c) {
    bf16 result;
    asm("fma.rn.bf16 %0, %1, %2, %3;" : "=h"(result.bits) : "h"(a.bits), "h"(b.bits), "h"(c.bits));
    return result;
}

//: add.bf16 fma.bf16
__device__ __forceinline__ bf16 add(bf16 a, bf16 b) { return fma(a, bf16{0x3f80}, b); }

//: subtract.bf16 fma.bf16
__device__ __forceinline__ bf16 subtract(bf16 a, bf16 b) { return fma(b, bf16{0xbf80}, a); }

//: multiply.bf16 fma.bf16
__device__ __forceinline__ bf16 multiply(bf16 a, bf16 b) { return fma(a, b, bf16{0x8000}); }

//: minimum.bf16 bf16
__device__ __forceinline__ bf16 minimum(bf16 a, bf16 b) {
    bf16 result;
    asm("min.NaN.bf16 %0, %1, %2;" : "=h"(result.bits) : "h"(a.bits), "h"(b.bits));
    return result;
}

//: maximum.bf16 bf16
__device__ __forceinline__ bf16 maximum(bf16 a, bf16 b) {
    bf16 result;
    asm("max.NaN.bf16 %0, %1, %2;" : "=h"(result.bits) : "h"(a.bits), "h"(b.bits));
    return result;
}

//: words_of
template <class To, class From> __device__ __forceinline__ To bits_as(From from) {
    To to = To();
    memcpy(&to, &from, sizeof(To) < sizeof(From) ? sizeof(To) : sizeof(From));
    return to;
}

//: shuffle words_of
template <class T, class F> __device__ __forceinline__ T shuffled(T value, F shuffle) {
    if constexpr (sizeof(T) <= 4) return bits_as<T>(shuffle(bits_as<u32>(value)));
    else {
        u64 whole = bits_as<u64>(value);
        return bits_as<T>((u64)shuffle((u32)whole) | (u64)shuffle((u32)(whole >> 32)) << 32);
    }
}

//: shuffle_xor shuffle
template <class T> __device__ __forceinline__ T shuffle_xor(T value, i64 lanes) {
    T other = shuffled(value, [=](u32 word) { return __shfl_xor_sync(WARP, word, (int)lanes); });
    return (u64)lanes < 32 ? other : value;
}

//: shuffle_index shuffle
template <class T> __device__ __forceinline__ T shuffle_index(T value, i64 lane) {
    return shuffled(value, [=](u32 word) { return __shfl_sync(WARP, word, (int)lane & 31); });
}

//: shuffle_bits shuffle
template <class T> __device__ __forceinline__ T shuffle_bits(T value, i64 kept, i64 set) {
    int lane = (int)threadIdx.x & 31 & (int)kept | (int)set;
    return shuffled(value, [=](u32 word) { return __shfl_sync(WARP, word, lane & 31); });
}

//: shuffle_up shuffle
template <class T> __device__ __forceinline__ T shuffle_up(T value, i64 lanes) {
    T other = shuffled(value, [=](u32 word) { return __shfl_up_sync(WARP, word, (unsigned)lanes); });
    return (u64)lanes < 32 ? other : value;
}

//: shuffle_down shuffle
template <class T> __device__ __forceinline__ T shuffle_down(T value, i64 lanes) {
    T other = shuffled(value, [=](u32 word) { return __shfl_down_sync(WARP, word, (unsigned)lanes); });
    return (u64)lanes < 32 ? other : value;
}

//: vote_any
__device__ __forceinline__ bool vote_any(bool holds) { return __any_sync(WARP, holds); }

//: vote_all
__device__ __forceinline__ bool vote_all(bool holds) { return __all_sync(WARP, holds); }

//: vote_ballot
__device__ __forceinline__ u32 vote_ballot(bool holds) { return __ballot_sync(WARP, holds); }

//: of_first_lane
__device__ __forceinline__ i32 of_first_lane(i32 x) { return __shfl_sync(0xffffffffu, x, 0); }

//: barrier_block
__device__ __forceinline__ void barrier_block() { __syncthreads(); }

//: spins
// One more turn of a wait, which nobody watches.
__device__ __forceinline__ void begins_to_wait() {}
__device__ __forceinline__ void spins(u32 wait, u32 parity) {}

//: spins.watched
// Times are in units of 2^32 ns, from when somebody last began to wait. The first thread to find that a wait is in vain
// writes; a unit later the kernel ends, so that other waits have been written, too.
__device__ u32* hang;  // in the CPU's memory
__device__ volatile u32 last_wait;
__device__ u32 in_vain;
__device__ __forceinline__ u32 time_now() {
    u32 now;
    asm volatile("mov.u32 %0, %%globaltimer_hi;" : "=r"(now));
    return now;
}
__device__ __forceinline__ void begins_to_wait() { last_wait = time_now(); }
__device__ __forceinline__ void watch(u32* words) { hang = words, last_wait = time_now(); }
__device__ __forceinline__ void spins(u32 wait, u32 parity) {
    if (time_now() - last_wait < WATCHED_UNITS) return;
    const u32 record = wait / 256 % WATCHED_RECORDS;
    if ((atomicOr(&in_vain, 1u << record) >> record & 1) == 0) {
        volatile u32* words = hang + 5 * record;
        words[1] = blockIdx.x, words[2] = threadIdx.x / 32, words[3] = wait, words[4] = parity;
        words[0] = 1;
        __threadfence_system();
    }
    if (time_now() - last_wait > WATCHED_UNITS) asm volatile("trap;");
}

//: barrier_grid spins
// Each block adds 1 to the counter, block 0 so much that the highest bit changes when all have come. The other
// bits are 0 then: so is the next barrier's counter, whether this launch or a later one comes to it.
__device__ __forceinline__ void barrier_grid(u32* arrivals, u32 wait = 0) {
    const u32 highest = 1u << 31;
    __syncthreads();
    if (threadIdx.x == 0) {
        const u32 mine = blockIdx.x == 0 ? highest - (gridDim.x - 1) : 1;
        u32 before, now;
        begins_to_wait();
        asm volatile("atom.acq_rel.gpu.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(arrivals), "r"(mine) : "memory");
        do {
            asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(now) : "l"(arrivals) : "memory");
            spins(wait, 0);
        } while (((before ^ now) & highest) == 0);
    }
    __syncthreads();
}

//: barrier_warp
__device__ __forceinline__ void barrier_warp() { __syncwarp(); }

//: barrier_named
template <int number, int threads> __device__ __forceinline__ void barrier_named() {
    asm volatile("bar.sync %0, %1;" :: "n"(number), "n"(threads) : "memory");
}
template <int threads> __device__ __forceinline__ void barrier_named(int number) {
    asm volatile("bar.sync %0, %1;" :: "r"(number), "n"(threads) : "memory");
}

//: barrier_arrive
template <int number, int threads> __device__ __forceinline__ void barrier_arrive() {
    asm volatile("bar.arrive %0, %1;" :: "n"(number), "n"(threads) : "memory");
}
template <int threads> __device__ __forceinline__ void barrier_arrive(int number) {
    asm volatile("bar.arrive %0, %1;" :: "r"(number), "n"(threads) : "memory");
}

//: barrier_warpgroup
__device__ __forceinline__ void barrier_warpgroup(int number) {
    asm volatile("bar.sync %0, 128;" :: "r"(number) : "memory");
}

//: shared_address
__device__ __forceinline__ u32 shared_address(const void* place) {
    return (u32)__cvta_generic_to_shared(place);
}

//: cp_async shared_address
template <int bytes> __device__ __forceinline__ void cp_async(void* to, const void* from, bool reads) {
    if (bytes == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                     :: "r"(shared_address(to)), "l"(from), "r"(reads ? 16 : 0) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
                     :: "r"(shared_address(to)), "l"(from), "n"(bytes), "r"(reads ? bytes : 0) : "memory");
}

//: cp_async_commit
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

//: cp_async_wait
template <int most> __device__ __forceinline__ void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" :: "n"(most) : "memory");
}

//: mbarrier_init shared_address
__device__ __forceinline__ void mbarrier_init(u64* barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" :: "r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

//: mbarrier_init.bulk shared_address
__device__ __forceinline__ void mbarrier_init(u64* barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" :: "r"(shared_address(barrier)), "r"(arrivals) : "memory");
    // Bulk copies and the other blocks of a cluster are to see it, too, behind the barrier that follows.
    asm volatile("fence.mbarrier_init.release.cluster;\n\tfence.proxy.async.shared::cta;" ::: "memory");
}

//: mbarrier_forget shared_address
// What is set up once more is taken back first: `known` has a bit for each place that the thread has set up.
__device__ __forceinline__ void mbarrier_forget(u64* barrier, u32& known, u32 place) {
    if (known >> place & 1)
        asm volatile("mbarrier.inval.shared.b64 [%0];" :: "r"(shared_address(barrier)) : "memory");
    known |= 1u << place;
}

//: mbarrier_arrive shared_address
__device__ __forceinline__ void mbarrier_arrive(u64* barrier) {
    asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }"
                 :: "r"(shared_address(barrier)) : "memory");
}

//: mbarrier_expect shared_address
__device__ __forceinline__ void mbarrier_expect(u64* barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :: "r"(shared_address(barrier)), "r"(bytes) : "memory");
}

//: mbarrier_arrive.peer shared_address
__device__ __forceinline__ void mbarrier_arrive(u64* barrier, u32 rank) {
    asm volatile("{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1;"
                 " mbarrier.arrive.release.cluster.shared::cluster.b64 _, [there]; }"
                 :: "r"(shared_address(barrier)), "r"(rank) : "memory");
}

//: mbarrier_release.peer shared_address
// No branch: behind one ptxas doesn't know any more which products have ended, and has each wait for the one before.
__device__ __forceinline__ void mbarrier_release(u64* barrier, u32 rank, bool holds) {
    asm volatile("{ .reg .pred p; .reg .b32 there; setp.ne.b32 p, %2, 0; mapa.shared::cluster.u32 there, %0, %1;"
                 " @p mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [there]; }"
                 :: "r"(shared_address(barrier)), "r"(rank), "r"((u32)holds) : "memory");
}

//: mbarrier_expect.peer shared_address
__device__ __forceinline__ void mbarrier_expect(u64* barrier, u32 rank, u32 bytes) {
    asm volatile("{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1;"
                 " mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [there], %2; }"
                 :: "r"(shared_address(barrier)), "r"(rank), "r"(bytes) : "memory");
}

//: mbarrier_wait shared_address spins
__device__ __forceinline__ void mbarrier_wait(u64* barrier, u32 parity, u32 wait = 0) {
    begins_to_wait();
    const u32 together = __activemask();
    u32 done = 0;
    while (!done) {
        asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done) : "r"(shared_address(barrier)), "r"(parity & 1) : "memory");
        spins(wait, parity & 1);
    }
    __syncwarp(together);  // a lane that ran ahead could end the next phase, unseen by the others
}

//: mbarrier_wait.bulk shared_address spins
__device__ __forceinline__ void mbarrier_wait(u64* barrier, u32 parity, u32 wait = 0) {
    begins_to_wait();
    const u32 together = __activemask();
    u32 done = 0;
    while (!done) {
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done) : "r"(shared_address(barrier)), "r"(parity & 1) : "memory");
        spins(wait, parity & 1);
    }
    __syncwarp(together);  // a lane that ran ahead could end the next phase, unseen by the others
}

//: mbarrier_wait_for_cluster shared_address spins
__device__ __forceinline__ void mbarrier_wait_for_cluster(u64* barrier, u32 parity, u32 wait = 0) {
    begins_to_wait();
    const u32 together = __activemask();
    u32 done = 0;
    while (!done) {
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;"
                     " selp.u32 %0, 1, 0, p; }"
                     : "=r"(done) : "r"(shared_address(barrier)), "r"(parity & 1) : "memory");
        spins(wait, parity & 1);
    }
    __syncwarp(together);  // a lane that ran ahead could end the next phase, unseen by the others
}

//: tensor_map
struct alignas(64) TensorMap { u8 bytes[128]; };

//: tensor_map_prefetch tensor_map
__device__ __forceinline__ void tensor_map_prefetch(const TensorMap* map) {
    asm volatile("prefetch.tensormap [%0];" :: "l"((u64)map) : "memory");
}

//: tma_load_pixels shared_address tensor_map
// The hardware counts pixels from the one that is named, within the corners that the map has.
__device__ __forceinline__ void tma_load_pixels(void* to, const TensorMap* map, i32 channel, i32 column, i32 row,
                                                i32 image, u16 right, u16 down, u64* barrier) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%3, %4, %5, %6}], [%2], {%7, %8};"
                 :: "r"(shared_address(to)), "l"((u64)map), "r"(shared_address(barrier)), "r"(channel), "r"(column),
                    "r"(row), "r"(image), "h"(right), "h"(down) : "memory");
}

//: tma_commit
__device__ __forceinline__ void tma_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

//: tma_wait
template <int most> __device__ __forceinline__ void tma_wait() {
    asm volatile("cp.async.bulk.wait_group.read %0;" :: "n"(most) : "memory");
}

//: fence_proxy_async
__device__ __forceinline__ void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

//: cluster_arrive
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }

//: cluster_wait
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

//: peer
template <class T> __device__ __forceinline__ T* peer(T* place, u32 rank) {
    u64 there;
    asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"((u64)place), "r"(rank));
    return (T*)there;
}

//: give_up_registers
template <int registers> __device__ __forceinline__ void give_up_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(registers));
}

//: take_registers
template <int registers> __device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(registers));
}

//: wgmma_fence
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

//: wgmma_commit
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

//: wgmma_wait
// What reads the results begins a basic block of its own, by a branch that is never taken. Else ptxas takes it for
// a part of the loop of products before, and has each of these wait for the last one (C7514).
template <int most> __device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(most) : "memory");
    if (most == 0 && gridDim.z == 0) asm volatile("trap;");
}

//: schedule_hold
// A branch that is never taken, and that ptxas can't replace by predicates: it moves neither work nor waits across.
__device__ __forceinline__ void schedule_hold() {
    if (gridDim.z == 0) asm volatile("nanosleep.u32 0;");
}

//: schedule_branch
// Instructions for some lanes only, or values chosen by a condition, can't stand in its place: ptxas has to jump.
__device__ __forceinline__ void schedule_branch() { asm volatile("nanosleep.u32 0;"); }

//: wgmma_operand shared_address
__device__ __forceinline__ u64 wgmma_operand(const void* place, u32 leading, u32 stride, u32 swizzle) {
    u64 distances = (u64)leading << 16 | (u64)stride << 32 | (u64)swizzle << 62;  // in units of 16 bytes
    return distances | (shared_address(place) & 0x3ffff) >> 4;
}

//: assertion_failed
__device__ __forceinline__ void assertion_failed(u32* status, u32 number) { atomicCAS(status, 0u, number); }

//: load_acquire words_of
template <class T> __device__ __forceinline__ T load_acquire(const T* place) {
    if constexpr (sizeof(T) == 8) {
        u64 word;
        asm volatile("ld.acquire.gpu.u64 %0, [%1];" : "=l"(word) : "l"(place) : "memory");
        return bits_as<T>(word);
    } else {
        u32 word;
        asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(word) : "l"(place) : "memory");
        return bits_as<T>(word);
    }
}

//: store_release words_of
template <class T> __device__ __forceinline__ void store_release(T* place, T value) {
    if constexpr (sizeof(T) == 8) {
        u64 word = bits_as<u64>(value);
        asm volatile("st.release.gpu.u64 [%0], %1;" :: "l"(place), "l"(word) : "memory");
    } else {
        u32 word = bits_as<u32>(value);
        asm volatile("st.release.gpu.u32 [%0], %1;" :: "l"(place), "r"(word) : "memory");
    }
}

//: fence_block
__device__ __forceinline__ void fence_block() { asm volatile("fence.acq_rel.cta;" ::: "memory"); }

//: fence_gpu
__device__ __forceinline__ void fence_gpu() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

//: update words_of
template <class T, class F> __device__ __forceinline__ T update(T* place, F combine) {
    if constexpr (sizeof(T) == 8) {
        u64 before, seen = *(volatile u64*)place;
        do {
            before = seen;
            seen = atomicCAS((u64*)place, before, bits_as<u64>(combine(bits_as<T>(before))));
        } while (seen != before);
        return bits_as<T>(before);
    } else {  // a smaller element is exchanged with the word around it
        u32* const word = (u32*)((u64)place & ~(u64)3);
        const u32 shift = (u32)((u64)place & 3) * 8;
        const u32 mask = (sizeof(T) == 4 ? ~0u : (1u << 8 * (sizeof(T) & 3)) - 1) << shift;
        u32 before, seen = *(volatile u32*)word;
        do {
            before = seen;
            u32 made = bits_as<u32>(combine(bits_as<T>((before & mask) >> shift)));
            seen = atomicCAS(word, before, (before & ~mask) | made << shift);
        } while (seen != before);
        return bits_as<T>((before & mask) >> shift);
    }
}

//: packed
// Registers of 4 bytes are copied whole: the compiler would not put their parts together again.
template <class T> __device__ __forceinline__ u32 packed(const T* parts) {
    u32 word;
    memcpy(&word, parts, 4);
    return word;
}

//: store_word
template <class T> __device__ __forceinline__ void store_word(T* parts, u32 word) { memcpy(parts, &word, 4); }

//: packed_whole packed
template <int count> struct Packed { u32 words[count]; };
template <class T, int count> __device__ __forceinline__ auto packed_whole(const T (&parts)[count]) {
    constexpr int together = 4 / sizeof(T);
    Packed<count / together> whole;
#pragma unroll
    for (int i = 0; i < count / together; ++i) {
        u32 word = packed(parts + i * together);
        asm volatile("" : "+r"(word));  // it is computed here, not between products in flight
        whole.words[i] = word;
    }
    return whole;
}
