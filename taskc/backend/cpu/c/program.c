// A program's calls, one after another, as one piece of work: who runs it has the pool until the last one ends. Those
// that the plan lets run at the same time share the threads. Jumps among them say where it goes on, for branches and
// whiles.
//
// A program has plans, one for each set of sizes that occurred, and arenas. A plan has frames: the words of all of its
// calls. A call of the program takes a frame and an arena that nobody has, and puts its own addresses among the words.
// program.py makes all of these, and says what is free to go: a plan only leaves the list while nobody looks it up.

typedef struct kept {
    struct kept *next;
    i64 busy, bytes;
} kept;

typedef struct {
    kept kept;
    i64 memory;
} arena;

typedef struct {
    kept kept;
    i64 *words;
    i64 count;
    call *steps;
    i64 scratch;  // bytes
    step_function *step;
    arena *arena;
    i64 moved;    // the memory that words lie in
    i64 helpers;  // the most that it may have
    i64 size;     // that its words are for, where the plan serves several
} frame;

typedef struct plan {
    struct plan *next;
    i64 keys;
    i64 (*key)[2];  // a word's number, and what it is at these sizes
    i64 bytes;      // of the arena
    frame *frames;
    i64 patches;
    i64 (*patch)[3];  // a word's number, which of those given it has, and an offset
    i64 moves;
    i64 (*move)[2];  // a word's number, and an offset in the arena
    i64 growing;     // the word of a size that may also be smaller than the key's; -1 if none may
    i64 grows;
    i64 (*grow)[2];  // a word's number, and by how much it grows with that size
} plan;

typedef struct {
    plan *plans;
    arena *arenas;
} program;

// Takes one of so many bytes from a list, or none.
INTERNAL void *take(kept *item, i64 bytes) {
    for (; item; item = item->next) {
        i64 idle = 0;
        if ((u64)item->bytes >= (u64)bytes && CHANGE(&item->busy, &idle, 1, ACQUIRE))
            break;
    }
    return item;
}

INTERNAL void give_back(kept *item) {
    STORE(&item->busy, 0, RELEASE);
}

INTERNAL _Bool is_for(const plan *one, const i64 *given) {
    for (i64 k = 0; k < one->keys; k++) {
        i64 number = one->key[k][0], size = given[number], most = one->key[k][1];
        if (number == one->growing ? (u64)size > (u64)most : size != most)
            return 0;
    }
    return 1;
}

// A frame that is ready to be run with these words, one for each parameter and dimension of the program; none where
// something is missing: a plan for these sizes, a frame or an arena.
frame *begin(program *of, const i64 *given) {
    plan *one = of->plans;
    while (one && !is_for(one, given))
        one = one->next;
    frame *made = one ? take(&one->frames->kept, 0) : NULL;
    if (!made)
        return NULL;
    arena *room = take(&of->arenas->kept, one->bytes);
    if (!room) {
        give_back(&made->kept);
        return NULL;
    }
    for (i64 k = 0; k < one->patches; k++)
        made->words[one->patch[k][0]] = given[one->patch[k][1]] + one->patch[k][2];
    if (one->growing >= 0) {
        i64 more = given[one->growing] - made->size;
        for (i64 k = 0; k < one->grows; k++)
            made->words[one->grow[k][0]] += more * one->grow[k][1];
        made->size += more;
    }
    made->arena = room;
    if (made->moved != room->memory) {
        made->moved = room->memory;
        for (i64 k = 0; k < one->moves; k++)
            made->words[one->move[k][0]] = room->memory + one->move[k][1];
    }
    return made;
}

// How many blocks a call has, negative where it is too quick for more than one thread; IN_ORDER if they are taken so.
INTERNAL i64 blocks_of(call *one) {
    return one->count(one->arguments);
}

INTERNAL i64 magnitude(i64 number) {
    return number < 0 ? -number : number;
}

// 0, or the assertion that a call has failed, and in the upper half its kernel; the next time it is none again.
INTERNAL i64 failed(call *one) {
    i64 number = *one->status;
    if (!number)
        return 0;
    *one->status = 0;
    return one->kernel << 32 | number;
}

// Runs calls up to the one before `end`: at the same time, or one by one where that isn't worth it. The result is the
// first one's whose assertion failed.
static APART i64 run_together(call *calls, call *end, step_function *step, void *scratch, _Bool is_shared) {
    i64 total = 0, first = 0;
    _Bool any_is_much = 0;
    for (call *each = calls; each != end; each++) {
        i64 signed_count = blocks_of(each);
        any_is_much |= signed_count > 0;
        each->begin = total;
        each->end = total += magnitude(signed_count);
    }
    if (pool.helpers && total > 1 && is_shared && any_is_much)
        step(calls, total, scratch, 1);
    else
        for (call *each = calls; each != end; each++)
            step(each, each->end - each->begin, scratch, 0);
    for (call *each = calls; each != end; each++) {
        i64 code = failed(each);
        first = first ? first : code;
    }
    return first;
}

// Of a jump `others` is -1; `begin` is the number of the step where it goes on, and `kernel` whether it stays where
// what its only argument points to is true.
static i64 run_steps(frame *of, void *scratch, _Bool is_shared) {
    call *steps = of->steps, *end = steps + of->count;
    step_function *step = of->step;
    for (call *each = steps; each < end;) {
        if (due && look(scratch))
            return 0;
        if (!each->others) {  // as several, but there is nothing to add up: its blocks begin at 0
            i64 signed_count = blocks_of(each), number = magnitude(signed_count);
            each->end = number & ~IN_ORDER;
            step(each, number, scratch, signed_count > 0 && is_shared);
            i64 code = failed(each);
            if (code)
                return code;
            each++;
        } else if (each->others > 0) {
            call *behind = each + 1 + each->others;
            i64 code = run_together(each, behind, step, scratch, is_shared);
            if (code)
                return code;
            each = behind;
        } else if (each->kernel && **(u8 **)each->arguments)
            each++;
        else
            each = steps + each->begin;
    }
    return 0;
}

enum { PROGRAM_NOT_READY = -1, PROGRAM_NO_MEMORY = -2, PROGRAM_GIVEN_UP = 2147483647 };

// Runs a frame's steps, and gives it back. The result is 0; the number of an assertion that failed, and in the upper
// half that of its kernel; or one of those above.
i64 run_program(frame *of) {
    i32 entered = enter();
    i64 result = PROGRAM_NOT_READY;
    if (try()) {
        if (has_scratch(of->scratch)) {
            has_pool(entered);
            i32 helpers = pool.helpers;
            u32 most = (u32)of->helpers;
            STORE(&pool.helpers, (u32)helpers < most ? helpers : (i32)most, RELAXED);
            result = run_steps(of, *pool.scratch, 1);
            STORE(&pool.helpers, helpers, RELAXED);
        }
        release();
    } else {  // another thread has the pool: this one does all of it
        void *scratch = of->scratch ? own_scratch(of->scratch) : NULL;
        result = of->scratch && !scratch ? PROGRAM_NO_MEMORY : run_steps(of, scratch, 0);
        free(scratch);
    }
    give_back(&of->arena->kept);
    give_back(&of->kept);
    return leave(entered) ? PROGRAM_GIVEN_UP : result;
}

// A frame's step that looks at the clock: one stamp before the first job, and one after each.
i32 monotonic_clock;
i64 *stamps;
i64 taken;

static void stamp(void) {
    i64 time[2];
    clock_gettime(monotonic_clock, time);
    stamps[taken++] = time[0] * 1000000000 + time[1];
}

void stamped(call *calls, i64 blocks, void *scratch, _Bool share) {
    if (!taken)
        stamp();
    step(calls, blocks, scratch, share);
    stamp();
}

static void nothing(i64 first, i64 last, void *arguments, void *scratch) {
    (void)first, (void)last, (void)arguments, (void)scratch;
}

void stamp_nothing(i64 count) {
    static call empty = {.job = nothing};
    for (i64 k = 0; k < count; k++)
        stamped(&empty, 1, NULL, 0);
}
