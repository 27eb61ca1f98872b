; The pool of threads that blocks are jobs for: fork and join, spinning for a moment, then asleep.
;
; The state is one word: its upper half is the number of the current piece of work, its lower half holds
; OPEN (bit 31: work may still be joined) and how many helpers are at it. A helper joins by adding one to
; an open state, so whoever wakes late finds it closed and touches nothing. Who began the work does blocks
; too, closes the state, and waits for those who joined. The upper half is also what to sleep on.
;
; Whoever has `busy` owns all of the rest: a job, or Python, which sets the pool up.
;
; What it needs of the system follows it: @pause for a moment, @sleep while the generation is as given
; (the result is how many moments to leave out before the next sleep), and @wake all who sleep.

%pool = type {
  i64, [56 x i8],       ; 0  state, on a cache line of its own
  i64, [56 x i8],       ; 2  next: the first block that nobody has taken
  ptr, ptr, i64, i64,   ; 4  job, arguments, blocks, chunk
  i32, i32,             ; 8  busy: somebody's; sleepers
  i32, i32,             ; 10 helpers that may join; ready: scratch is there, and threads that run
  ptr, i64              ; 12 scratch, one address for each thread; its bytes
}

@pool = global %pool zeroinitializer, align 64

declare i32 @sched_yield()
declare ptr @aligned_alloc(i64, i64)
declare void @free(ptr)

; Takes chunks of blocks until none is left.
define internal void @work(i64 %thread) {
  %job = load ptr, ptr getelementptr (%pool, ptr @pool, i32 0, i32 4)
  %arguments = load ptr, ptr getelementptr (%pool, ptr @pool, i32 0, i32 5)
  %blocks = load i64, ptr getelementptr (%pool, ptr @pool, i32 0, i32 6)
  %chunk = load i64, ptr getelementptr (%pool, ptr @pool, i32 0, i32 7)
  %scratches = load ptr, ptr getelementptr (%pool, ptr @pool, i32 0, i32 12)
  %place = getelementptr ptr, ptr %scratches, i64 %thread
  %scratch = load ptr, ptr %place
  br label %take
take:
  %first = atomicrmw add ptr getelementptr (%pool, ptr @pool, i32 0, i32 2), i64 %chunk monotonic
  %any = icmp slt i64 %first, %blocks
  br i1 %any, label %do, label %end
do:
  %last = add i64 %first, %chunk
  %stop = call i64 @llvm.smin.i64(i64 %last, i64 %blocks)
  call void %job(i64 %first, i64 %stop, ptr %arguments, ptr %scratch)
  br label %take
end:
  ret void
}
declare i64 @llvm.smin.i64(i64, i64)

; A helper's life. Its number comes as an address, as pthread_create passes it.
define ptr @helper(ptr %number) {
  %thread = ptrtoint ptr %number to i64
  br label %look
look:
  %seen = phi i64 [ 0, %0 ], [ %seen, %spin ], [ %seen, %join ], [ %seen, %slept ], [ %generation, %worked ]
  %spins = phi i64 [ 0, %0 ], [ %more, %spin ], [ %spins, %join ], [ %rested, %slept ], [ 0, %worked ]
  %state = load atomic i64, ptr @pool acquire, align 64
  %generation = lshr i64 %state, 32
  %is_new = icmp ne i64 %generation, %seen
  %bit = and i64 %state, 2147483648
  %is_open = icmp ne i64 %bit, 0
  %is_due = and i1 %is_new, %is_open
  %helpers = load atomic i32, ptr getelementptr (%pool, ptr @pool, i32 0, i32 10) monotonic, align 4
  %most = zext i32 %helpers to i64
  %may = icmp ule i64 %thread, %most
  %joins = and i1 %is_due, %may
  br i1 %joins, label %join, label %wait
join:
  %joined = add i64 %state, 1
  %swap = cmpxchg ptr @pool, i64 %state, i64 %joined acq_rel monotonic
  %done = extractvalue { i64, i1 } %swap, 1
  br i1 %done, label %worked, label %look
worked:
  call void @work(i64 %thread)
  %left = atomicrmw sub ptr @pool, i64 1 release
  br label %look
wait:
  %tired = icmp ugt i64 %spins, 3000
  br i1 %tired, label %sleep, label %spin
spin:
  call void @pause()
  %more = add i64 %spins, 1
  br label %look
sleep:
  %s = atomicrmw add ptr getelementptr (%pool, ptr @pool, i32 0, i32 9), i32 1 seq_cst
  %expected = trunc i64 %generation to i32
  %rested = call i64 @sleep(i32 %expected)
  %w = atomicrmw sub ptr getelementptr (%pool, ptr @pool, i32 0, i32 9), i32 1 seq_cst
  br label %slept
slept:
  br label %look
}

; Takes the pool, or returns false.
define internal i1 @try() {
  %pair = cmpxchg ptr getelementptr (%pool, ptr @pool, i32 0, i32 8), i32 0, i32 1 acquire monotonic
  %mine = extractvalue { i32, i1 } %pair, 1
  ret i1 %mine
}

; Takes the pool once it is free. Whoever has it needs nothing of who waits here, Python's lock included.
define void @claim() {
  br label %again
again:
  %mine = call i1 @try()
  br i1 %mine, label %end, label %yield
yield:
  %y = call i32 @sched_yield()
  br label %again
end:
  ret void
}

define void @release() {
  store atomic i32 0, ptr getelementptr (%pool, ptr @pool, i32 0, i32 8) release, align 4
  ret void
}

; Runs all blocks of a job, on all threads where `share` says that it is worth it. What it returns is 0;
; 1 where the pool has to be set up first: threads, or scratch of so many bytes; 2 without memory.
define i32 @run(ptr %job, i64 %blocks, ptr %arguments, i64 %bytes, i1 %share) {
  %many = icmp sgt i64 %blocks, 1
  %shared = and i1 %many, %share
  %unshared = xor i1 %shared, true
  %bare = icmp eq i64 %bytes, 0
  %plain = and i1 %bare, %unshared
  br i1 %plain, label %alone, label %claim
alone:                            ; the pool has nothing that it needs
  call void %job(i64 0, i64 %blocks, ptr %arguments, ptr null)
  ret i32 0
claim:
  %mine = call i1 @try()
  br i1 %mine, label %owner, label %own_scratch
own_scratch:                      ; another thread has the pool: do it here
  %up = add i64 %bytes, 64
  %rounded = and i64 %up, -64
  %block = call ptr @aligned_alloc(i64 64, i64 %rounded)
  %failed = icmp eq ptr %block, null
  br i1 %failed, label %out_of_memory, label %with_own
out_of_memory:
  ret i32 2
with_own:
  call void %job(i64 0, i64 %blocks, ptr %arguments, ptr %block)
  call void @free(ptr %block)
  ret i32 0
owner:
  %ready = load i32, ptr getelementptr (%pool, ptr @pool, i32 0, i32 11)
  %is_ready = icmp ne i32 %ready, 0
  %has = load i64, ptr getelementptr (%pool, ptr @pool, i32 0, i32 13)
  %enough = icmp ule i64 %bytes, %has
  %can = and i1 %is_ready, %enough
  br i1 %can, label %choose, label %refuse
refuse:
  call void @release()
  ret i32 1
choose:
  %scratches = load ptr, ptr getelementptr (%pool, ptr @pool, i32 0, i32 12)
  %scratch = load ptr, ptr %scratches
  call void @step(ptr %job, i64 %blocks, ptr %arguments, ptr %scratch, i1 %share)
  call void @release()
  ret i32 0
}

; Runs a job for who has the pool, on all threads if it is to be shared; one who hasn't may say that it isn't.
define void @step(ptr %job, i64 %blocks, ptr %arguments, ptr %scratch, i1 %share) {
  %many = icmp sgt i64 %blocks, 1
  %shared = and i1 %many, %share
  br i1 %shared, label %choose, label %serial
choose:
  %helpers = load i32, ptr getelementptr (%pool, ptr @pool, i32 0, i32 10)
  %some = icmp ne i32 %helpers, 0
  br i1 %some, label %fork, label %serial
serial:
  call void %job(i64 0, i64 %blocks, ptr %arguments, ptr %scratch)
  ret void
fork:
  store ptr %job, ptr getelementptr (%pool, ptr @pool, i32 0, i32 4)
  store ptr %arguments, ptr getelementptr (%pool, ptr @pool, i32 0, i32 5)
  store i64 %blocks, ptr getelementptr (%pool, ptr @pool, i32 0, i32 6)
  %threads = add i32 %helpers, 1
  %pieces32 = mul i32 %threads, 8
  %pieces = zext i32 %pieces32 to i64
  %even = udiv i64 %blocks, %pieces
  %chunk = call i64 @llvm.umax.i64(i64 %even, i64 1)
  store i64 %chunk, ptr getelementptr (%pool, ptr @pool, i32 0, i32 7)
  store atomic i64 0, ptr getelementptr (%pool, ptr @pool, i32 0, i32 2) monotonic, align 64
  %state = load atomic i64, ptr @pool monotonic, align 64
  %number = lshr i64 %state, 32
  %next = add i64 %number, 1
  %high = shl i64 %next, 32
  %open = or i64 %high, 2147483648
  store atomic i64 %open, ptr @pool seq_cst, align 64
  %sleepers = load atomic i32, ptr getelementptr (%pool, ptr @pool, i32 0, i32 9) seq_cst, align 4
  %asleep = icmp ne i32 %sleepers, 0
  br i1 %asleep, label %wake, label %join
wake:
  call void @wake()
  br label %join
join:
  call void @work(i64 0)
  %closed = atomicrmw and ptr @pool, i64 -2147483649 acq_rel
  br label %wait
wait:
  %spins = phi i64 [ 0, %join ], [ %more, %spin ], [ %spins, %yield ]
  %now = load atomic i64, ptr @pool acquire, align 64
  %active = and i64 %now, 2147483647
  %over = icmp eq i64 %active, 0
  br i1 %over, label %end, label %look
look:
  %long = icmp ugt i64 %spins, 3000
  br i1 %long, label %yield, label %spin
spin:
  call void @pause()
  %more = add i64 %spins, 1
  br label %wait
yield:
  %y = call i32 @sched_yield()
  br label %wait
end:
  ret void
}
declare i64 @llvm.umax.i64(i64, i64)
