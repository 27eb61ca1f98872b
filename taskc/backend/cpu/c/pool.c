// The pool of threads that blocks are jobs for: fork and join, spinning for a moment, then asleep.
//
// The state is one word: its upper half is the number of the current piece of work, its lower half holds OPEN (work may
// still be joined) and how many helpers are at it. A helper joins by adding one to an open state, so whoever wakes late
// finds it closed and touches nothing. Who began the work does blocks too, closes the state, and waits for those who
// joined. The upper half is also what to sleep on.
//
// Work is one call or several, whose blocks are numbered one after another. Each thread begins with a part of them that
// is its own, the same one whenever there are as many blocks: what a block read the last time, such as the weights of a
// recurrence, may still be in its core's cache. Then it takes what others left. Blocks that wait for those before them
// are one part, and taken one by one: IN_ORDER among their number says so.
//
// Whoever has `busy` owns all of the rest: work, or Python, which sets the pool up.

#define OPEN (1ll << 31)
#define IN_ORDER (1ll << 62)
#define SPINS 3000
#define LINE 64

typedef struct {
    i64 next, end;  // the first block that nobody has taken
    char rest[LINE - 16];
} part;

struct {
    i64 state;
    char rest[LINE - 8];
    call *calls;
    i64 chunk;
    i32 busy, sleepers;
    i32 helpers, ready;  // helpers that may join; whether scratch is there, and threads that run
    void **scratch;      // one address for each thread
    i64 bytes;           // of each
    part *parts;         // one for each thread
} pool __attribute__((aligned(LINE)));

// Signals are handled by Python, in its main thread, which may be in here for long. While it is, a watcher raises `due`
// a few times a second, and the main thread lowers it: between two blocks, calls, or turns of a while it looks for
// signals, as Python does between two of its instructions. Where a handler raises an exception, that is kept, all that
// is run for the main thread ends at the next such place, and who called Python raises it again.
volatile u8 due;
u64 main_thread;      // as pthread_self names it
volatile i32 inside;  // whether it is in here: 1, or 2 where it has the pool
u8 watching;          // whether there is a watcher
i32 sig_block;        // the system's number
static volatile i32 raised;  // what `inside` was when a handler raised an exception
static void *exception[3];

INTERNAL _Bool is_main(void) {
    return pthread_self() == main_thread;
}

// The watcher's life, which ends after 40 looks, ten seconds, that find the main thread elsewhere.
static void *watch(void *nothing) {
    u64 all[32];
    sigfillset(all);
    pthread_sigmask(sig_block, all, NULL);
    for (i32 idle = 0;;) {
        usleep(250000);
        _Bool is_inside = inside != 0;
        due = is_inside;
        idle = is_inside ? 0 : idle + 1;
        if (idle < 40)
            continue;
        // Who comes in from now on begins another one; who just has is seen after a moment.
        STORE(&watching, 0, SEQ_CST);
        usleep(1000);
        u8 none = 0;
        if (!inside || !CHANGE(&watching, &none, 1, RELAXED))
            return nothing;
        idle = 0;
    }
}

static RARE void begin_to_watch(void) {
    u64 thread;
    STORE(&watching, 1, RELAXED);
    if (pthread_create(&thread, NULL, watch, NULL))
        STORE(&watching, 0, RELAXED);
    else
        pthread_detach(thread);
}

// Notes that the main thread is here. The result is for `leave`; of other threads -1.
INTERNAL i32 enter(void) {
    if (!is_main())
        return -1;
    i32 before = inside;
    inside = 1;
    if (!LOAD(&watching, RELAXED))
        begin_to_watch();
    return before;
}

INTERNAL void has_pool(i32 entered) {
    if (entered >= 0)
        inside = 2;
}

// Whether what ran was given up.
INTERNAL _Bool leave(i32 entered) {
    if (entered < 0)
        return 0;
    inside = entered;
    if (!raised)
        return 0;
    raised = 0;
    due = 0;
    return 1;
}

// Of the main thread: the call that it is in ends at the next look.
static void keep_exception(void) {
    PyErr_Fetch(exception, exception + 1, exception + 2);
    raised = inside;
    due = 1;
}

// Sets the exception that was kept, for who called Python.
void raise(void) {
    PyErr_Restore(exception[0], exception[1], exception[2]);
}

// Hands the values of the print of this number to a Python function.
RARE void print(void *function, i64 number, void *words) {
    i32 state = PyGILState_Ensure();
    void *made = PyObject_CallFunction(function, "LL", number, (i64)words);
    if (made)
        Py_DecRef(made);
    else if (is_main())
        keep_exception();
    else  // nobody is there to take it
        PyErr_WriteUnraisable(function);
    PyGILState_Release(state);
}

// Whether who runs blocks with this scratch memory gives up. Where `due` is raised, everybody asks.
RARE _Bool look(void *scratch) {
    i32 seen = raised;
    if (is_main()) {
        if (seen)
            return 1;
        due = 0;
        i32 state = PyGILState_Ensure();
        _Bool is_over = PyErr_CheckSignals() != 0;
        if (is_over)
            keep_exception();
        PyGILState_Release(state);
        return is_over;
    }
    if (seen == 2)  // a helper's scratch is in the table
        for (i32 thread = 0; thread <= pool.helpers; thread++)
            if (pool.scratch[thread] == scratch)
                return 1;
    return 0;
}

// The rest of a job after a look.
RARE void go_on(i64 first, i64 last, void *arguments, void *scratch, job_function *job) {
    if (!look(scratch))
        job(first, last, arguments, scratch);
}

// A pause of a moment, which Python spells for the processor at hand.
INTERNAL void pause(void) {
    __asm__ volatile("pause");
}

// Linux's futex and its functions for threads on processors, which Python finds. Elsewhere a helper that is tired looks
// again twice a millisecond, so the first job after a while without one begins with fewer threads.
i64 (*system_call)(i64 number, ...);
i64 futex;
i32 (*current_processor)(void);
i32 (*keep_on)(u64 thread, i64 bytes, const void *mask);
// Who wakes others is about to work where it runs, and a system may put them there, too: after a long sleep both were
// seen to share one processor for tens of milliseconds. So they are kept off it.
const char (*masks)[128];  // a processor's others
i32 processors;
u64 *handles;  // the helpers'
i64 handled;
i32 avoided = -1;

INTERNAL void on_generation(i32 operation, i32 number) {
    system_call(futex, (char *)&pool.state + 4, operation, number, NULL, NULL, 0);
}

// Waits while the generation is this one. The result is for how many moments not to sleep again.
INTERNAL i64 sleep(i32 generation) {
    if (futex) {
        on_generation(128, generation);
        return 0;
    }
    usleep(500);
    return 1000000;
}

INTERNAL void wake(void) {
    if (!futex)
        return;
    i32 processor = current_processor();
    if ((u32)processor < (u32)processors && processor != avoided) {
        avoided = processor;
        for (i64 k = 0; k < handled; k++)
            keep_on(handles[k], 128, masks[processor]);
    }
    on_generation(129, 2147483647);
}

// Takes chunks of blocks until none is left, of this thread's part and then of the others'.
static void work(i64 thread) {
    call *calls = pool.calls;
    part *parts = pool.parts;
    i64 chunk = pool.chunk, most = (u32)pool.helpers;
    void *scratch = pool.scratch[thread];
    i64 whose = thread;
    do {
        i64 *next = &parts[whose].next, part_end = parts[whose].end;
        for (call *each = calls;;) {
            if (due && look(scratch))
                return;
            if (LOAD(next, RELAXED) >= part_end)  // without taking its cache line from who is at it
                break;
            i64 from = ADD(next, chunk, RELAXED);
            if (from >= part_end)
                break;
            i64 stop = from + chunk < part_end ? from + chunk : part_end;
            while (from < stop) {
                while (from >= each->end)
                    each++;
                i64 to = stop < each->end ? stop : each->end;
                each->job(from - each->begin, to - each->begin, each->arguments, scratch);
                from = to;
            }
        }
        whose = whose == most ? 0 : whose + 1;
    } while (whose != thread);
}

// A helper's life. Its number comes as an address, as pthread_create passes it.
void *helper(void *number) {
    i64 thread = (i64)number, seen = 0;
    for (i64 spins = 0;;) {
        i64 state = LOAD(&pool.state, ACQUIRE), generation = (u64)state >> 32;
        _Bool is_due = generation != seen && state & OPEN;
        if (is_due && thread <= LOAD(&pool.helpers, RELAXED)) {
            if (CHANGE(&pool.state, &state, state + 1, ACQ_REL)) {
                work(thread);
                ADD(&pool.state, -1, RELEASE);
                seen = generation;
                spins = 0;
            }
        } else if (spins > SPINS) {
            ADD(&pool.sleepers, 1, SEQ_CST);
            spins = sleep((i32)generation);
            ADD(&pool.sleepers, -1, SEQ_CST);
        } else {
            pause();
            spins++;
        }
    }
}

// Takes the pool, or returns false.
_Bool try(void) {
    i32 free_one = 0;
    return CHANGE(&pool.busy, &free_one, 1, ACQUIRE);
}

// Takes the pool once it is free. Whoever has it needs nothing of who waits here, Python's lock included.
void claim(void) {
    while (!try())
        sched_yield();
}

void release(void) {
    STORE(&pool.busy, 0, RELEASE);
}

// Out of line, so that a call that is run by its caller saves no registers for it.
static APART void fork(call *calls, i64 blocks, i64 threads, _Bool in_order) {
    pool.calls = calls;
    i64 even = blocks / (threads * 8);
    pool.chunk = in_order || !even ? 1 : even;
    i64 first = 0;
    for (i64 thread = 0; thread < threads; thread++) {
        i64 last = in_order ? blocks : (thread + 1) * blocks / threads;
        STORE(&pool.parts[thread].next, first, RELAXED);
        pool.parts[thread].end = last;
        first = last;
    }
    i64 generation = ((u64)LOAD(&pool.state, RELAXED) >> 32) + 1;
    STORE(&pool.state, (i64)((u64)generation << 32) | OPEN, SEQ_CST);
    if (LOAD(&pool.sleepers, SEQ_CST))
        wake();
    work(0);
    __atomic_fetch_and(&pool.state, ~OPEN, __ATOMIC_ACQ_REL);
    for (i64 spins = 0; LOAD(&pool.state, ACQUIRE) & (OPEN - 1);) {
        if (spins <= SPINS) {
            pause();
            spins++;
        } else {
            sched_yield();
            if (due)
                look(NULL);
        }
    }
}

// Runs a call, or several whose blocks are so many together, on all threads for who has the pool. Without `share` it is
// one, and runs on this thread; several need helpers, too.
void step(call *calls, i64 number, void *scratch, _Bool share) {
    i64 blocks = number & ~IN_ORDER;
    if (blocks > 1 && share && pool.helpers)
        fork(calls, blocks, (i64)pool.helpers + 1, blocks != number);
    else
        calls->job(0, blocks, calls->arguments, scratch);
}

INTERNAL void *own_scratch(i64 bytes) {
    return aligned_alloc(64, (bytes + 64) & -64);
}

INTERNAL _Bool has_scratch(i64 bytes) {
    return pool.ready && (u64)bytes <= (u64)pool.bytes;
}

enum { RAN, NOT_READY, NO_MEMORY, GIVEN_UP };

INTERNAL i32 run_for(i32 entered, call *one, i64 number, i64 bytes, _Bool share) {
    if (!bytes && !(share && one->end > 1)) {  // the pool has nothing that it needs
        one->job(0, one->end, one->arguments, NULL);
        return RAN;
    }
    if (!try()) {  // another thread has the pool: this one does it
        void *scratch = own_scratch(bytes);
        if (!scratch)
            return NO_MEMORY;
        one->job(0, one->end, one->arguments, scratch);
        free(scratch);
        return RAN;
    }
    i32 result = NOT_READY;
    if (has_scratch(bytes)) {
        has_pool(entered);
        step(one, number, *pool.scratch, share);
        result = RAN;
    }
    release();
    return result;
}

// Runs all blocks of a job, on all threads where `share` says that it is worth it. It needs so many bytes of scratch.
i32 run(job_function *job, i64 number, void *arguments, i64 bytes, _Bool share) {
    i32 entered = enter();
    call one;  // its other fields are a program's
    one.job = job;
    one.arguments = arguments;
    one.begin = 0;
    one.end = number & ~IN_ORDER;
    i32 result = run_for(entered, &one, number, bytes, share);
    return leave(entered) ? GIVEN_UP : result;
}

// Sums of so many blocks of 256 bytes. Each word changes the sum that it goes into; the rotation makes order count.
typedef u64 words_of_block __attribute__((vector_size(256), aligned(1)));
void checksum(const words_of_block *memory, i64 blocks, words_of_block *sums) {
    u64 sum __attribute__((vector_size(256))) = {0};
    for (i64 k = 0; k < blocks; k++) {
        sum ^= memory[k];
        sum = (sum << 29 | sum >> 35) * 0x9e3779b97f4a7c15;
    }
    *sums = sum;
}
