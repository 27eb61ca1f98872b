// Matrix instructions, as the manual of PTX describes who has which elements, and how shared memory is laid out.

namespace ptx {

// Types of elements, and what they are of bits.

struct of_f16 { typedef f32 number; enum { bits = 16 }; static f32 of(u32 x) { return (f32)half_of((u16)x); } };
struct of_bf16 { typedef f32 number; enum { bits = 16 }; static f32 of(u32 x) { return of_bits(x << 16); } };
struct of_tf32 {  // the lower 13 bits are ignored
    typedef f32 number; enum { bits = 32 }; static f32 of(u32 x) { return of_bits(x & 0xffffe000u); }
};
struct of_e4m3 { typedef f32 number; enum { bits = 8 }; static f32 of(u32 x) { return (f32)number_of_e4m3(x); } };
struct of_e5m2 { typedef f32 number; enum { bits = 8 }; static f32 of(u32 x) { return (f32)number_of_e5m2(x); } };
struct of_s8 { typedef i32 number; enum { bits = 8 }; static i32 of(u32 x) { return (i8)x; } };
struct of_u8 { typedef i32 number; enum { bits = 8 }; static i32 of(u32 x) { return (u8)x; } };
struct of_f32 { typedef f32 number; };
struct of_s32 { typedef i32 number; };

// Element i of a register: registers hold the lower one first.
template <class T> typename T::number part(u32 word, int i) {
    return T::of(word >> i * T::bits % 32 & (u32)((1ull << T::bits) - 1));
}
static f32 step(f32 sum, f32 a, f32 b) { return fmaf(a, b, sum); }
static i32 step(i32 sum, i32 a, i32 b) { return (i32)((u32)sum + (u32)a * (u32)b); }

// A lane is of a group of four, which has a row of the left operand and of the result, a column of the right one.
struct Place { int row, column; };
static int group() { return host::lane() / 4; }
static int in_group() { return host::lane() % 4; }
static Place of_left(int lane, int word, int i, int in_word) {
    return {lane / 4 + (word % 2 ? 8 : 0), lane % 4 * in_word + i + (word / 2 ? 4 * in_word : 0)};
}
static Place of_right(int lane, int word, int i, int in_word) {
    return {lane % 4 * in_word + i + (word ? 4 * in_word : 0), lane / 4};
}
static Place of_result(int lane, int i) {  // four of each 8 columns
    return {lane / 4 + (i % 4 < 2 ? 0 : 8), i / 4 * 8 + lane % 4 * 2 + i % 2};
}

template <int m, int n, int k, class D, class A, class B, class C, class To, class Left, class Right, class From>
void mma_sync_aligned_row_col(To d, Left a, Right b, From c) {
    const int in_left = 32 / A::bits, in_right = 32 / B::bits;
    static_assert(m == 16 && n == 8 && std::tuple_size<To>() == 4 && std::tuple_size<From>() == 4, "a result");
    static_assert(std::tuple_size<Left>() * in_left * 32 == m * k, "a left operand");
    static_assert(std::tuple_size<Right>() * in_right * 32 == k * n, "a right operand");
    struct Board { typename D::number left[m][k], right[k][n]; };
    static std::vector<Board> boards;
    boards.resize(host::fibers.size() / 32 + 1);
    const int warp = host::current / 32, lane = host::lane();
    for (size_t w = 0; w < a.size(); ++w)
        for (int i = 0; i < in_left; ++i) {
            Place at = of_left(lane, (int)w, i, in_left);
            boards[warp].left[at.row][at.column] = part<A>(*a[w], i);
        }
    for (size_t w = 0; w < b.size(); ++w)
        for (int i = 0; i < in_right; ++i) {
            Place at = of_right(lane, (int)w, i, in_right);
            boards[warp].right[at.row][at.column] = part<B>(*b[w], i);
        }
    host::require(host::warp_size() == 32, "a matrix instruction is a whole warp's");
    host::meet_warp(&boards);
    for (int i = 0; i < 4; ++i) {
        Place at = of_result(lane, i);
        typename D::number sum = *c[i];
        for (int q = 0; q < k; ++q)
            sum = step(sum, boards[warp].left[at.row][q], boards[warp].right[q][at.column]);
        *d[i] = sum;
    }
    host::meet_warp(&boards);
}

// Matrices of 8 rows of 16 bytes, whose addresses lanes of eight give; a lane has two halves of each.
template <int count, bool is_transposed, class F> void each_of_matrices(u32 address, F move) {
    const bool is_used = host::lane() < 8 * count;
    host::require(!is_used || address % 16 == 0, "a row of a matrix begins at a multiple of 16 bytes");
    host::slots[host::current] = address;
    host::meet_warp((void*)6);
    for (int i = 0; i < 2 * count; ++i) {
        int row = group(), column = 2 * in_group() + i % 2;
        if (is_transposed) std::swap(row, column);
        u32 line = (u32)host::slots[host::first_of_warp() + 8 * (i / 2) + row];
        move(i / 2, i % 2 * 16, (u16*)host::seen(line, 16) + column);
    }
    host::meet_warp((void*)6);
}
template <int count, bool is_transposed, class List> void matrices_loaded(List to, u32 address) {
    static_assert(std::tuple_size<List>() == count, "a register of each matrix");
    u32 made[count] = {};
    each_of_matrices<count, is_transposed>(
        address, [&](int word, int shift, u16* place) { made[word] |= (u32)*place << shift; });
    for (int i = 0; i < count; ++i) *to[i] = made[i];
}
template <int count, bool is_transposed, class List> void matrices_stored(u32 address, List from) {
    static_assert(std::tuple_size<List>() == count, "a register of each matrix");
    each_of_matrices<count, is_transposed>(
        address, [&](int word, int shift, u16* place) { *place = (u16)(*from[word] >> shift); });
}
template <int n, class L> void ldmatrix_sync_aligned_m8n8_shared_b16(L to, u32 at) {
    matrices_loaded<n, false>(to, at);
}
template <int n, class L> void ldmatrix_sync_aligned_m8n8_trans_shared_b16(L to, u32 at) {
    matrices_loaded<n, true>(to, at);
}
template <int n, class L> void stmatrix_sync_aligned_m8n8_shared_b16(u32 at, L from) {
    matrices_stored<n, false>(at, from);
}
template <int n, class L> void stmatrix_sync_aligned_m8n8_trans_shared_b16(u32 at, L from) {
    matrices_stored<n, true>(at, from);
}

// An operand in shared memory: where, and how far from each other its parts are.

struct Descriptor {
    u32 start, leading, stride;
    int width;                                     // of a line, within which units of 16 bytes are exchanged

    explicit Descriptor(u64 bits)
        : start((bits & 0x3fff) << 4), leading((bits >> 16 & 0x3fff) << 4), stride((bits >> 32 & 0x3fff) << 4) {
        const int widths[] = {16, 128, 64, 32};
        width = widths[bits >> 62];
        host::require(!(bits & (0xffffull << 46 | 3ull << 30 | 3ull << 14)), "bits of a descriptor are not used, or an offset that is 0");
    }

    // Of the element (mn of the rows or columns, q of k). Lines are of k, 8 of them together, or of mn; in units:
    //   K,  no swizzle:  ((8, m), (unit, 2))     : ((unit, stride), (1, leading))
    //   K,  swizzled:    ((8, m), (unit, 2k))    : ((line, stride), (1, unit))
    //   MN, no swizzle:  ((unit, 1, m), (8, k))  : ((1, unit, stride), (unit, leading))
    //   MN, swizzled:    ((unit, w, m), (8, k))  : ((1, unit, leading), (line, stride))
    u32 offset(bool is_along_mn, int mn, int q, int size) const {
        const int unit = 16 / size, line = width / size;
        u32 at;
        if (!is_along_mn) {
            at = mn % 8 * width + mn / 8 * stride + q % unit * size;
            at += q / unit * (width == 16 ? leading : 16);
        } else {
            at = mn % line * size + q % 8 * width;
            at += width == 16 ? mn / line * stride + q / 8 * leading : mn / line * leading + q / 8 * stride;
        }
        u32 place = start + at;
        return place ^ (place >> 7 & (width / 16 - 1)) << 4;
    }
};

// Products under way of a warpgroup: each is made of what its 128 threads say.

}  // namespace ptx

struct host::Product {
    int come = 0;
    u64 right;
    std::vector<u64> left_places;
    std::array<std::array<u32, 4>, 128> left_words;
    std::array<std::vector<void*>, 128> results;
    bool accumulates;
    void (*run)(Product&);
};

namespace ptx {

using host::Product;

static int in_warpgroup() { return host::thread() % 128; }
static host::Warpgroup& warpgroup() { return host::block().warpgroups[host::thread() / 128]; }

static void retire(size_t until) {
    host::Warpgroup& own = warpgroup();
    while (own.done < until) {
        Product* next = own.products[own.done];
        if (next->come < 128) {
            host::yield();
            continue;
        }
        ++own.done;
        ++host::progress;
        next->run(*next);
        delete next;
    }
}

template <int m, int n, int k, class D, class A, class B, bool in_registers, bool left_along_m, bool right_along_n>
void multiply(Product& one) {
    typedef typename D::number T;
    static T left[m][k], right[k][n];
    const u8* memory = host::asynchronous(host::rank() << 24 | host::RESERVED, 0) - host::RESERVED;
    const int size = A::bits / 8, in_word = 32 / A::bits;
    auto element = [&](u32 at) {
        host::offset_of(at, size);
        u32 bits = 0;
        memcpy(&bits, memory + at, size);
        return bits;
    };
    if (in_registers) {
        for (int thread = 0; thread < 128; ++thread)
            for (int w = 0; w < 4; ++w)
                for (int i = 0; i < in_word; ++i) {
                    Place at = of_left(thread % 32, w, i, in_word);
                    left[thread / 32 * 16 + at.row][at.column] = part<A>(one.left_words[thread][w], i);
                }
    } else {
        Descriptor of(one.left_places[0]);
        for (int r = 0; r < m; ++r)
            for (int q = 0; q < k; ++q) left[r][q] = A::of(element(of.offset(left_along_m, r, q, size)));
    }
    Descriptor of(one.right);
    for (int q = 0; q < k; ++q)
        for (int c = 0; c < n; ++c) right[q][c] = B::of(element(of.offset(right_along_n, c, q, size)));
    for (int thread = 0; thread < 128; ++thread)
        for (int i = 0; i < n / 2; ++i) {
            Place at = of_result(thread % 32, i);
            T* to = (T*)one.results[thread][i];
            T sum = one.accumulates ? *to : 0;
            for (int q = 0; q < k; ++q)
                sum = step(sum, left[thread / 32 * 16 + at.row][q], right[q][at.column]);
            *to = sum;
        }
}

static void take_left(Product& one, u64 place) { one.left_places.push_back(place); }
template <class T> void take_left(Product& one, std::array<T*, 4> words) {
    for (int i = 0; i < 4; ++i) one.left_words[in_warpgroup()][i] = *words[i];
}

template <int m, int n, int k, class D, class A, class B, class To, class Left, class... Flags>
void wgmma_mma_async_sync_aligned(To d, Left left, u64 right, bool accumulates, Flags... given) {
    const bool in_registers = !std::is_same<Left, u64>();
    const bool is_transposed = sizeof(A) && A::bits == 16, is_float = std::is_same<D, of_f32>();
    const int flags[] = {given..., 0, 0, 0, 0}, count = 2 * is_float + (2 - in_registers) * is_transposed;
    static_assert(m == 64 && k * A::bits == 256 && A::bits == B::bits, "a product");
    static_assert(std::tuple_size<To>() == n / 2 && sizeof...(Flags) == count, "its operands");
    host::require(!is_float || (flags[0] == 1 && flags[1] == 1), "operands are not negated");
    const bool along_m = is_transposed && !in_registers && flags[2];
    const bool along_n = is_transposed && flags[in_registers ? 2 : 3];
    auto& products = warpgroup().products;
    const size_t index = host::fiber().products++;
    if (products.size() == index) {
        Product* made = new Product();
        made->right = right, made->accumulates = accumulates;
        made->run = along_m ? along_n ? multiply<m, n, k, D, A, B, in_registers, true, true>
                                      : multiply<m, n, k, D, A, B, in_registers, true, false>
                            : along_n ? multiply<m, n, k, D, A, B, in_registers, false, true>
                                      : multiply<m, n, k, D, A, B, in_registers, false, false>;
        products.push_back(made);
    }
    Product& one = *products[index];
    host::require(one.right == right && one.accumulates == accumulates, "threads of a warpgroup differ");
    take_left(one, left);
    host::require(one.left_places.empty() || one.left_places[0] == one.left_places.back(),
                  "threads of a warpgroup differ");
    one.results[in_warpgroup()].assign(d.begin(), d.end());
    ++host::progress;
    if (++one.come == 128 && host::is_early()) retire(index + 1);
}
static void wgmma_fence_sync_aligned() {}
static void wgmma_commit_group_sync_aligned() {
    host::fiber().product_groups.push_back(host::fiber().products);
}
static void wgmma_wait_group_sync_aligned(int most) {
    auto& groups = host::fiber().product_groups;
    if ((int)groups.size() > most) retire(groups[groups.size() - 1 - most]);
}

}  // namespace ptx
