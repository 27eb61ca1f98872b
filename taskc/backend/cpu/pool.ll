; The pool of threads that blocks are jobs for: fork and join, spinning for a moment, then asleep.
;
; The state is one word: its upper half is the number of the current piece of work, its lower half holds
; OPEN (bit 31: work may still be joined) and how many helpers are at it. A helper joins by adding one to
; an open state, so whoever wakes late finds it closed and touches nothing. Who began the work does blocks
; too, closes the state, and waits for those who joined. The upper half is also what to sleep on.
;
; Work is one call or several, whose blocks are numbered one after another: %call says which of them are whose. Each
; thread begins with a part of them that is its own, the same one whenever there are as many blocks: what a block read
; the last time, such as the weights of a recurrence, may still be in its core's cache. Then it takes what others left.
; Blocks that wait for those before them are one part, and taken one by one: bit 62 of their number says so.
;
; Whoever has `busy` owns all of the rest: work, or Python, which sets the pool up.
;
; What it needs of the system follows it: @pause for a moment, @sleep while the generation is as given
; (the result is how many moments to leave out before the next sleep), @wake all who sleep, and @sig_block.

%pool = type {
  i64, [56 x i8],       ; 0  state, on a cache line of its own
  ptr, i64,             ; 2  calls, chunk
  i32, i32,             ; 4  busy: somebody's; sleepers
  i32, i32,             ; 6  helpers that may join; ready: scratch is there, and threads that run
  ptr, i64, ptr         ; 8  scratch, one address for each thread; its bytes; parts, one for each thread
}

%part = type { i64, i64, [48 x i8] }  ; the first block of it that nobody has taken, its end; a cache line

; A call of a kernel: where its blocks begin among those of the work, and end. The rest is for a program's.
%call = type {
  ptr, ptr, i64, i64,   ; 0  job, arguments, begin, end
  ptr, ptr, i64, i64    ; 4  count, the word of a failed assertion, kernel, how many of the next ones run beside it
}

@pool = global %pool zeroinitializer, align 64

; Signals are handled by Python, in its main thread, which may be in here for long. While it is, a watcher raises
; `due` a few times a second, and the main thread lowers it: between two blocks, calls, or turns of a while it looks for
; signals, as Python does between two of its instructions. Where a handler raises an exception, that is kept, all that
; is run for the main thread ends at the next such place, and who called Python raises it again.
@due = global i8 0
@main = global i64 0                  ; the main thread, as pthread_self names it
@inside = global i32 0       ; whether it is in here: 1, or 2 where it has the pool
@raised = internal global i32 0       ; what `inside` was when a handler raised an exception
@exception = internal global [3 x ptr] zeroinitializer
@watching = global i8 0               ; whether there is a watcher

declare i64 @pthread_self()
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_detach(i64)
declare i32 @pthread_sigmask(i32, ptr, ptr)
declare i32 @sigfillset(ptr)
declare i32 @usleep(i32)
declare i32 @PyGILState_Ensure()
declare void @PyGILState_Release(i32)
declare i32 @PyErr_CheckSignals()
declare void @PyErr_Fetch(ptr, ptr, ptr)
declare void @PyErr_Restore(ptr, ptr, ptr)
declare void @PyErr_WriteUnraisable(ptr)
declare ptr @PyObject_CallFunction(ptr, ptr, ...)
declare void @Py_DecRef(ptr)
@two_numbers = internal constant [3 x i8] c"LL\00"

; Notes that the main thread is here. The result is for @leave.
define internal i32 @enter() {
  %self = call i64 @pthread_self()
  %main = load i64, ptr @main
  %is_main = icmp eq i64 %self, %main
  br i1 %is_main, label %note, label %end
note:
  %before = load i32, ptr @inside
  store volatile i32 1, ptr @inside
  %watching = load atomic i8, ptr @watching monotonic, align 1
  %is_watched = icmp ne i8 %watching, 0
  br i1 %is_watched, label %end, label %begin
begin:
  call void @begin_to_watch()
  br label %end
end:
  %result = phi i32 [ -1, %0 ], [ %before, %note ], [ %before, %begin ]
  ret i32 %result
}

; Notes that whoever came in has taken the pool.
define internal void @has_pool(i32 %entered) {
  %is_main = icmp sge i32 %entered, 0
  br i1 %is_main, label %note, label %end
note:
  store volatile i32 2, ptr @inside
  ret void
end:
  ret void
}

; The result is whether what ran was given up.
define internal i1 @leave(i32 %entered) {
  %is_main = icmp sge i32 %entered, 0
  br i1 %is_main, label %note, label %no
note:
  store volatile i32 %entered, ptr @inside
  %raised = load i32, ptr @raised
  %is_raised = icmp ne i32 %raised, 0
  br i1 %is_raised, label %yes, label %no
yes:
  store i32 0, ptr @raised
  store volatile i8 0, ptr @due
  ret i1 true
no:
  ret i1 false
}

define internal void @begin_to_watch() noinline cold {
  %thread = alloca i64
  store atomic i8 1, ptr @watching monotonic, align 1
  %error = call i32 @pthread_create(ptr %thread, ptr null, ptr @watch, ptr null)
  %is_there = icmp eq i32 %error, 0
  br i1 %is_there, label %end, label %none
none:
  store atomic i8 0, ptr @watching monotonic, align 1
  ret void
end:
  %handle = load i64, ptr %thread
  %detached = call i32 @pthread_detach(i64 %handle)
  ret void
}

; The watcher's life, which ends after 40 looks, ten seconds, that find the main thread elsewhere.
define internal ptr @watch(ptr %nothing) {
  %all = alloca [256 x i8], align 16
  %filled = call i32 @sigfillset(ptr %all)
  %how = load i32, ptr @sig_block
  %masked = call i32 @pthread_sigmask(i32 %how, ptr %all, ptr null)
  br label %nap
nap:
  %idle = phi i32 [ 0, %0 ], [ %still, %look ], [ 0, %stays ]
  %slept = call i32 @usleep(i32 250000)
  %inside = load volatile i32, ptr @inside
  %is_inside = icmp ne i32 %inside, 0
  %flag = zext i1 %is_inside to i8
  store volatile i8 %flag, ptr @due
  %more = add i32 %idle, 1
  %still = select i1 %is_inside, i32 0, i32 %more
  br label %look
look:
  %is_over = icmp uge i32 %still, 40
  br i1 %is_over, label %ends, label %nap
ends:                             ; who comes in from now on begins another one; who just has is seen after a moment
  store atomic i8 0, ptr @watching seq_cst, align 1
  %last = call i32 @usleep(i32 1000)
  %late = load volatile i32, ptr @inside
  %is_late = icmp ne i32 %late, 0
  br i1 %is_late, label %takes, label %end
takes:
  %pair = cmpxchg ptr @watching, i8 0, i8 1 monotonic monotonic
  %is_mine = extractvalue { i8, i1 } %pair, 1
  br i1 %is_mine, label %stays, label %end
stays:
  br label %nap
end:
  ret ptr null
}

; Of the main thread: the call that it is in ends at the next look.
define internal void @keep_exception() {
  call void @PyErr_Fetch(ptr @exception, ptr getelementptr (ptr, ptr @exception, i64 1),
    ptr getelementptr (ptr, ptr @exception, i64 2))
  %inside = load volatile i32, ptr @inside
  store volatile i32 %inside, ptr @raised
  store volatile i8 1, ptr @due
  ret void
}

; Hands the values of the print of this number to a Python function.
define void @print(ptr %function, i64 %number, ptr %words) noinline cold {
  %state = call i32 @PyGILState_Ensure()
  %address = ptrtoint ptr %words to i64
  %made = call ptr (ptr, ptr, ...) @PyObject_CallFunction(ptr %function, ptr @two_numbers, i64 %number, i64 %address)
  %is_made = icmp ne ptr %made, null
  br i1 %is_made, label %fine, label %wrong
fine:
  call void @Py_DecRef(ptr %made)
  br label %end
wrong:
  %self = call i64 @pthread_self()
  %main = load i64, ptr @main
  %is_main = icmp eq i64 %self, %main
  br i1 %is_main, label %keep, label %say
keep:
  call void @keep_exception()
  br label %end
say:                              ; nobody is there to take it
  call void @PyErr_WriteUnraisable(ptr %function)
  br label %end
end:
  call void @PyGILState_Release(i32 %state)
  ret void
}

; Whether who runs blocks with this scratch memory gives up. Where `due` is raised, everybody asks.
define i1 @look(ptr %scratch) noinline cold {
  %self = call i64 @pthread_self()
  %main = load i64, ptr @main
  %is_main = icmp eq i64 %self, %main
  %raised = load volatile i32, ptr @raised
  br i1 %is_main, label %own, label %other
own:
  %is_raised = icmp ne i32 %raised, 0
  br i1 %is_raised, label %yes, label %ask
ask:
  store volatile i8 0, ptr @due
  %state = call i32 @PyGILState_Ensure()
  %error = call i32 @PyErr_CheckSignals()
  %is_fine = icmp eq i32 %error, 0
  br i1 %is_fine, label %fine, label %wrong
fine:
  call void @PyGILState_Release(i32 %state)
  ret i1 false
wrong:
  call void @keep_exception()
  call void @PyGILState_Release(i32 %state)
  ret i1 true
other:                            ; a helper's scratch is in the table
  %has_helpers = icmp eq i32 %raised, 2
  br i1 %has_helpers, label %search, label %no
search:
  %scratches = load ptr, ptr getelementptr (%pool, ptr @pool, i32 0, i32 8)
  %helpers = load i32, ptr getelementptr (%pool, ptr @pool, i32 0, i32 6)
  br label %each
each:
  %thread = phi i32 [ 0, %search ], [ %next, %compare ]
  %is_left = icmp ule i32 %thread, %helpers
  br i1 %is_left, label %compare, label %no
compare:
  %place = getelementptr ptr, ptr %scratches, i32 %thread
  %there = load ptr, ptr %place
  %is_it = icmp eq ptr %there, %scratch
  %next = add i32 %thread, 1
  br i1 %is_it, label %yes, label %each
yes:
  ret i1 true
no:
  ret i1 false
}

; What is left of a job after a look.
define void @go_on(i64 %first, i64 %last, ptr %arguments, ptr %scratch, ptr %job) noinline cold {
  %is_over = call i1 @look(ptr %scratch)
  br i1 %is_over, label %end, label %next
next:
  tail call void %job(i64 %first, i64 %last, ptr %arguments, ptr %scratch)
  ret void
end:
  ret void
}

; Sets the exception that was kept, for who called Python.
define void @raise() {
  %type = load ptr, ptr @exception
  %value = load ptr, ptr getelementptr (ptr, ptr @exception, i64 1)
  %trace = load ptr, ptr getelementptr (ptr, ptr @exception, i64 2)
  call void @PyErr_Restore(ptr %type, ptr %value, ptr %trace)
  ret void
}

declare i32 @sched_yield()
declare ptr @aligned_alloc(i64, i64)
declare void @free(ptr)

; Takes chunks of blocks until none is left, of this thread's part and then of the others'.
define internal void @work(i64 %thread) {
  %calls = load ptr, ptr getelementptr (%pool, ptr @pool, i32 0, i32 2)
  %chunk = load i64, ptr getelementptr (%pool, ptr @pool, i32 0, i32 3)
  %helpers = load i32, ptr getelementptr (%pool, ptr @pool, i32 0, i32 6)
  %most = zext i32 %helpers to i64
  %scratches = load ptr, ptr getelementptr (%pool, ptr @pool, i32 0, i32 8)
  %place = getelementptr ptr, ptr %scratches, i64 %thread
  %scratch = load ptr, ptr %place
  %parts = load ptr, ptr getelementptr (%pool, ptr @pool, i32 0, i32 10)
  br label %part
part:
  %whose = phi i64 [ %thread, %0 ], [ %another, %leave ]
  %next = getelementptr %part, ptr %parts, i64 %whose
  %part_end_place = getelementptr %part, ptr %next, i32 0, i32 1
  %part_end = load i64, ptr %part_end_place
  br label %see
see:                              ; without taking its cache line from who is at it
  %before = phi ptr [ %calls, %part ], [ %call, %do ]
  %due = load volatile i8, ptr @due
  %is_due = icmp ne i8 %due, 0
  br i1 %is_due, label %ask, label %count
ask:
  %stops = call i1 @look(ptr %scratch)
  br i1 %stops, label %end, label %count
count:
  %seen = load atomic i64, ptr %next monotonic, align 64
  %is_left = icmp slt i64 %seen, %part_end
  br i1 %is_left, label %take, label %leave
take:
  %first = atomicrmw add ptr %next, i64 %chunk monotonic
  %any = icmp slt i64 %first, %part_end
  br i1 %any, label %some, label %leave
some:
  %last = add i64 %first, %chunk
  %stop = call i64 @llvm.smin.i64(i64 %last, i64 %part_end)
  br label %look
look:
  %call = phi ptr [ %before, %some ], [ %following, %other ], [ %call, %do ]
  %from = phi i64 [ %first, %some ], [ %from, %other ], [ %to, %do ]
  %end_place = getelementptr %call, ptr %call, i32 0, i32 3
  %its_end = load i64, ptr %end_place
  %is_its = icmp slt i64 %from, %its_end
  br i1 %is_its, label %do, label %other
other:
  %following = getelementptr %call, ptr %call, i64 1
  br label %look
do:
  %job = load ptr, ptr %call
  %arguments_place = getelementptr %call, ptr %call, i32 0, i32 1
  %arguments = load ptr, ptr %arguments_place
  %begin_place = getelementptr %call, ptr %call, i32 0, i32 2
  %begin = load i64, ptr %begin_place
  %to = call i64 @llvm.smin.i64(i64 %stop, i64 %its_end)
  %its_first = sub i64 %from, %begin
  %its_stop = sub i64 %to, %begin
  call void %job(i64 %its_first, i64 %its_stop, ptr %arguments, ptr %scratch)
  %more = icmp slt i64 %to, %stop
  br i1 %more, label %look, label %see
leave:
  %is_last = icmp eq i64 %whose, %most
  %up = add i64 %whose, 1
  %another = select i1 %is_last, i64 0, i64 %up
  %is_round = icmp eq i64 %another, %thread
  br i1 %is_round, label %end, label %part
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
  %helpers = load atomic i32, ptr getelementptr (%pool, ptr @pool, i32 0, i32 6) monotonic, align 4
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
  %s = atomicrmw add ptr getelementptr (%pool, ptr @pool, i32 0, i32 5), i32 1 seq_cst
  %expected = trunc i64 %generation to i32
  %rested = call i64 @sleep(i32 %expected)
  %w = atomicrmw sub ptr getelementptr (%pool, ptr @pool, i32 0, i32 5), i32 1 seq_cst
  br label %slept
slept:
  br label %look
}

; Takes the pool, or returns false.
define i1 @try() {
  %pair = cmpxchg ptr getelementptr (%pool, ptr @pool, i32 0, i32 4), i32 0, i32 1 acquire monotonic
  %mine = extractvalue { i32, i1 } %pair, 1
  ret i1 %mine
}

; Sums of so many blocks of 256 bytes. Each word changes the sum that it goes into, and rotating makes their order count.
declare <32 x i64> @llvm.fshl.v32i64(<32 x i64>, <32 x i64>, <32 x i64>)
define void @checksum(ptr %memory, i64 %blocks, ptr %sums) {
  %one = insertelement <32 x i64> poison, i64 29, i64 0
  %turn = shufflevector <32 x i64> %one, <32 x i64> poison, <32 x i32> zeroinitializer
  %odd = insertelement <32 x i64> poison, i64 -7046029254386353131, i64 0
  %factor = shufflevector <32 x i64> %odd, <32 x i64> poison, <32 x i32> zeroinitializer
  br label %test
test:
  %k = phi i64 [ 0, %0 ], [ %next, %add ]
  %sum = phi <32 x i64> [ zeroinitializer, %0 ], [ %product, %add ]
  %goes_on = icmp ult i64 %k, %blocks
  br i1 %goes_on, label %add, label %end
add:
  %place = getelementptr <32 x i64>, ptr %memory, i64 %k
  %words = load <32 x i64>, ptr %place, align 1
  %mixed = xor <32 x i64> %sum, %words
  %turned = call <32 x i64> @llvm.fshl.v32i64(<32 x i64> %mixed, <32 x i64> %mixed, <32 x i64> %turn)
  %product = mul <32 x i64> %turned, %factor
  %next = add i64 %k, 1
  br label %test
end:
  store <32 x i64> %sum, ptr %sums, align 1
  ret void
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
  store atomic i32 0, ptr getelementptr (%pool, ptr @pool, i32 0, i32 4) release, align 4
  ret void
}

; Runs all blocks of a job, on all threads where `share` says that it is worth it. What it returns is 0;
; 1 where the pool has to be set up first: threads, or scratch of so many bytes; 2 without memory; 3 where it was given up.
define i32 @run(ptr %job, i64 %blocks, ptr %arguments, i64 %bytes, i1 %share) {
  %entered = call i32 @enter()
  %result = call i32 @run_for(i32 %entered, ptr %job, i64 %blocks, ptr %arguments, i64 %bytes, i1 %share)
  %is_over = call i1 @leave(i32 %entered)
  %answer = select i1 %is_over, i32 3, i32 %result
  ret i32 %answer
}

define internal i32 @run_for(i32 %entered, ptr %job, i64 %number, ptr %arguments, i64 %bytes, i1 %share) {
  %blocks = and i64 %number, -4611686018427387905
  %call = alloca %call
  store ptr %job, ptr %call
  %arguments_place = getelementptr %call, ptr %call, i32 0, i32 1
  store ptr %arguments, ptr %arguments_place
  %begin_place = getelementptr %call, ptr %call, i32 0, i32 2
  store i64 0, ptr %begin_place
  %end_place = getelementptr %call, ptr %call, i32 0, i32 3
  store i64 %blocks, ptr %end_place
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
  %ready = load i32, ptr getelementptr (%pool, ptr @pool, i32 0, i32 7)
  %is_ready = icmp ne i32 %ready, 0
  %has = load i64, ptr getelementptr (%pool, ptr @pool, i32 0, i32 9)
  %enough = icmp ule i64 %bytes, %has
  %can = and i1 %is_ready, %enough
  br i1 %can, label %choose, label %refuse
refuse:
  call void @release()
  ret i32 1
choose:
  call void @has_pool(i32 %entered)
  %scratches = load ptr, ptr getelementptr (%pool, ptr @pool, i32 0, i32 8)
  %scratch = load ptr, ptr %scratches
  call void @step(ptr %call, i64 %number, ptr %scratch, i1 %share)
  call void @release()
  ret i32 0
}

; Runs a call, or several whose blocks are so many together, on all threads for who has the pool. Without `share` it
; is one, and runs on this thread; several need helpers, too.
define void @step(ptr %calls, i64 %number, ptr %scratch, i1 %share) {
  %in_order = and i64 %number, 4611686018427387904
  %blocks = xor i64 %number, %in_order
  %many = icmp sgt i64 %blocks, 1
  %shared = and i1 %many, %share
  br i1 %shared, label %choose, label %serial
choose:
  %helpers = load i32, ptr getelementptr (%pool, ptr @pool, i32 0, i32 6)
  %some = icmp ne i32 %helpers, 0
  br i1 %some, label %fork, label %serial
fork:
  %are_ordered = icmp ne i64 %in_order, 0
  call void @fork(ptr %calls, i64 %blocks, i32 %helpers, i1 %are_ordered)
  ret void
serial:
  %job = load ptr, ptr %calls
  %arguments_place = getelementptr %call, ptr %calls, i32 0, i32 1
  %arguments = load ptr, ptr %arguments_place
  call void %job(i64 0, i64 %blocks, ptr %arguments, ptr %scratch)
  ret void
}

; Out of line, so that a call that is run here saves no registers for it.
define internal void @fork(ptr %calls, i64 %blocks, i32 %helpers, i1 %are_ordered) noinline {
  store ptr %calls, ptr getelementptr (%pool, ptr @pool, i32 0, i32 2)
  %parts = load ptr, ptr getelementptr (%pool, ptr @pool, i32 0, i32 10)
  %more_threads = add i32 %helpers, 1
  %threads = zext i32 %more_threads to i64
  %pieces = shl i64 %threads, 3
  %even = udiv i64 %blocks, %pieces
  %some_each = call i64 @llvm.umax.i64(i64 %even, i64 1)
  %chunk = select i1 %are_ordered, i64 1, i64 %some_each
  store i64 %chunk, ptr getelementptr (%pool, ptr @pool, i32 0, i32 3)
  br label %divide
divide:
  %thread = phi i64 [ 0, %0 ], [ %following, %divide ]
  %first = phi i64 [ 0, %0 ], [ %last, %divide ]
  %following = add i64 %thread, 1
  %scaled = mul i64 %following, %blocks
  %share_end = udiv i64 %scaled, %threads
  %last = select i1 %are_ordered, i64 %blocks, i64 %share_end
  %part = getelementptr %part, ptr %parts, i64 %thread
  store atomic i64 %first, ptr %part monotonic, align 64
  %last_place = getelementptr %part, ptr %part, i32 0, i32 1
  store i64 %last, ptr %last_place
  %divided = icmp eq i64 %following, %threads
  br i1 %divided, label %open, label %divide
open:
  %state = load atomic i64, ptr @pool monotonic, align 64
  %number = lshr i64 %state, 32
  %next = add i64 %number, 1
  %high = shl i64 %next, 32
  %opened = or i64 %high, 2147483648
  store atomic i64 %opened, ptr @pool seq_cst, align 64
  %sleepers = load atomic i32, ptr getelementptr (%pool, ptr @pool, i32 0, i32 5) seq_cst, align 4
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
  %spins = phi i64 [ 0, %join ], [ %more, %spin ], [ %spins, %yield ], [ %spins, %ask ]
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
  %due = load volatile i8, ptr @due
  %is_due = icmp ne i8 %due, 0
  br i1 %is_due, label %ask, label %wait
ask:
  %stops = call i1 @look(ptr null)
  br label %wait
end:
  ret void
}
declare i64 @llvm.umax.i64(i64, i64)
