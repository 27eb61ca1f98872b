; A program's calls, one after another, as one piece of work: who runs it has the pool until the last one ends. Those
; that the plan lets run beside each other share the threads. Jumps among them say where it goes on, for branches and
; whiles.
;
; A program has plans, one for each set of sizes that occurred, and arenas. A plan has frames: the words of all of its
; calls. A call of the program takes a frame and an arena that nobody has, and puts its own addresses among the words.
; program.py makes all of these, and says what is free to go: a plan only leaves the list while nobody looks it up.

%program = type { ptr, ptr }                       ; plans, arenas
%plan = type { ptr, i64, ptr, i64, ptr, i64, ptr, i64, ptr }
  ; 0 next; 1 how many words, and 2 pairs of a word's number and what it is at these sizes; 3 bytes of the arena;
  ; 4 frames; 5 how many words are given by the caller, and 6 triples of a word, what is given and an offset;
  ; 7 how many words lie in the arena, and 8 pairs of a word and an offset
%kept = type { ptr, i64, i64 }                     ; what frames and arenas begin with: next, busy, bytes
%arena = type { %kept, ptr }                       ; its memory
%frame = type { %kept, ptr, i64, ptr, i64, ptr, ptr, ptr, i64 }
  ; 1 words; 2 how many steps, and 3 each; 4 bytes of scratch; 5 @step; 6 the arena; 7 the memory that words lie in;
  ; 8 the most helpers that it may have

; A step is %call. Of a jump -1 run beside it, where it begins is the number of another step, and in place of a kernel
; there is 1 where it is one unless what its only argument points to is true.

; Takes one of so many bytes from a list, or none.
define internal ptr @take(ptr %first, i64 %bytes) {
  br label %look
look:
  %item = phi ptr [ %first, %0 ], [ %next, %other ]
  %is_end = icmp eq ptr %item, null
  br i1 %is_end, label %end, label %size
size:
  %size_place = getelementptr %kept, ptr %item, i32 0, i32 2
  %size_there = load i64, ptr %size_place
  %is_large = icmp uge i64 %size_there, %bytes
  br i1 %is_large, label %try, label %other
try:
  %busy = getelementptr %kept, ptr %item, i32 0, i32 1
  %pair = cmpxchg ptr %busy, i64 0, i64 1 acquire monotonic
  %mine = extractvalue { i64, i1 } %pair, 1
  br i1 %mine, label %end, label %other
other:
  %next = load ptr, ptr %item
  br label %look
end:
  ret ptr %item
}

define internal void @give_back(ptr %item) {
  %busy = getelementptr %kept, ptr %item, i32 0, i32 1
  store atomic i64 0, ptr %busy release, align 8
  ret void
}

; The plan for the sizes among the words that are given, or none.
define internal ptr @find(ptr %first, ptr %given) {
  br label %look
look:
  %plan = phi ptr [ %first, %0 ], [ %next, %other ]
  %is_end = icmp eq ptr %plan, null
  br i1 %is_end, label %end, label %start
start:
  %count_place = getelementptr %plan, ptr %plan, i32 0, i32 1
  %count = load i64, ptr %count_place
  %pairs_place = getelementptr %plan, ptr %plan, i32 0, i32 2
  %pairs = load ptr, ptr %pairs_place
  br label %compare
compare:
  %k = phi i64 [ 0, %start ], [ %following, %each ]
  %more = icmp ult i64 %k, %count
  br i1 %more, label %each, label %end
each:
  %pair = getelementptr [2 x i64], ptr %pairs, i64 %k
  %number = load i64, ptr %pair
  %wanted_place = getelementptr i64, ptr %pair, i64 1
  %wanted = load i64, ptr %wanted_place
  %word_place = getelementptr i64, ptr %given, i64 %number
  %word = load i64, ptr %word_place
  %following = add i64 %k, 1
  %same = icmp eq i64 %word, %wanted
  br i1 %same, label %compare, label %other
other:
  %next = load ptr, ptr %plan
  br label %look
end:
  ret ptr %plan
}

; Puts what is given among the words.
define internal void @patch(ptr %words, i64 %count, ptr %triples, ptr %given) {
  br label %look
look:
  %k = phi i64 [ 0, %0 ], [ %following, %each ]
  %more = icmp ult i64 %k, %count
  br i1 %more, label %each, label %end
each:
  %triple = getelementptr [3 x i64], ptr %triples, i64 %k
  %number = load i64, ptr %triple
  %from_place = getelementptr i64, ptr %triple, i64 1
  %from = load i64, ptr %from_place
  %offset_place = getelementptr i64, ptr %triple, i64 2
  %offset = load i64, ptr %offset_place
  %given_place = getelementptr i64, ptr %given, i64 %from
  %start = load i64, ptr %given_place
  %word = add i64 %start, %offset
  %place = getelementptr i64, ptr %words, i64 %number
  store i64 %word, ptr %place
  %following = add i64 %k, 1
  br label %look
end:
  ret void
}

; Puts addresses in an arena among the words.
define internal void @move(ptr %words, i64 %count, ptr %pairs, i64 %memory) {
  br label %look
look:
  %k = phi i64 [ 0, %0 ], [ %following, %each ]
  %more = icmp ult i64 %k, %count
  br i1 %more, label %each, label %end
each:
  %pair = getelementptr [2 x i64], ptr %pairs, i64 %k
  %number = load i64, ptr %pair
  %offset_place = getelementptr i64, ptr %pair, i64 1
  %offset = load i64, ptr %offset_place
  %word = add i64 %memory, %offset
  %place = getelementptr i64, ptr %words, i64 %number
  store i64 %word, ptr %place
  %following = add i64 %k, 1
  br label %look
end:
  ret void
}

; A frame that is ready to be run with these words, one for each parameter and dimension of the program; none where
; something is missing: a plan for these sizes, a frame or an arena.
define ptr @begin(ptr %program, ptr %given) {
  %plans = load ptr, ptr %program
  %plan = call ptr @find(ptr %plans, ptr %given)
  %known = icmp ne ptr %plan, null
  br i1 %known, label %planned, label %none
planned:
  %frames_place = getelementptr %plan, ptr %plan, i32 0, i32 4
  %frames = load ptr, ptr %frames_place
  %frame = call ptr @take(ptr %frames, i64 0)
  %framed = icmp ne ptr %frame, null
  br i1 %framed, label %room, label %none
room:
  %bytes_place = getelementptr %plan, ptr %plan, i32 0, i32 3
  %bytes = load i64, ptr %bytes_place
  %arenas_place = getelementptr %program, ptr %program, i32 0, i32 1
  %arenas = load ptr, ptr %arenas_place
  %arena = call ptr @take(ptr %arenas, i64 %bytes)
  %roomy = icmp ne ptr %arena, null
  br i1 %roomy, label %fill, label %give_back
give_back:
  call void @give_back(ptr %frame)
  br label %none
none:
  ret ptr null
fill:
  %words_place = getelementptr %frame, ptr %frame, i32 0, i32 1
  %words = load ptr, ptr %words_place
  %patches_place = getelementptr %plan, ptr %plan, i32 0, i32 5
  %patches = load i64, ptr %patches_place
  %triples_place = getelementptr %plan, ptr %plan, i32 0, i32 6
  %triples = load ptr, ptr %triples_place
  call void @patch(ptr %words, i64 %patches, ptr %triples, ptr %given)
  %arena_place = getelementptr %frame, ptr %frame, i32 0, i32 6
  store ptr %arena, ptr %arena_place
  %memory_place = getelementptr %arena, ptr %arena, i32 0, i32 1
  %memory = load i64, ptr %memory_place
  %before_place = getelementptr %frame, ptr %frame, i32 0, i32 7
  %before = load i64, ptr %before_place
  %stays = icmp eq i64 %before, %memory
  br i1 %stays, label %ready, label %move
move:
  store i64 %memory, ptr %before_place
  %moves_place = getelementptr %plan, ptr %plan, i32 0, i32 7
  %moves = load i64, ptr %moves_place
  %pairs_place = getelementptr %plan, ptr %plan, i32 0, i32 8
  %pairs = load ptr, ptr %pairs_place
  call void @move(ptr %words, i64 %moves, ptr %pairs, i64 %memory)
  br label %ready
ready:
  ret ptr %frame
}

; Runs a frame's steps, and gives it back. The result is 0; -1 where the pool has to be set up first; -2 without
; memory; the number of an assertion that failed, and in the upper half that of its kernel; or 2147483647 where it was
; given up.
define i64 @run_program(ptr %frame) {
  %entered = call i32 @enter()
  %bytes_place = getelementptr %frame, ptr %frame, i32 0, i32 4
  %bytes = load i64, ptr %bytes_place
  %mine = call i1 @try()
  br i1 %mine, label %owner, label %other
owner:
  %ready = load i32, ptr getelementptr (%pool, ptr @pool, i32 0, i32 7)
  %is_ready = icmp ne i32 %ready, 0
  %has = load i64, ptr getelementptr (%pool, ptr @pool, i32 0, i32 9)
  %enough = icmp ule i64 %bytes, %has
  %can = and i1 %is_ready, %enough
  br i1 %can, label %pooled, label %refuse
refuse:
  call void @release()
  br label %end
pooled:
  call void @has_pool(i32 %entered)
  %scratches = load ptr, ptr getelementptr (%pool, ptr @pool, i32 0, i32 8)
  %scratch = load ptr, ptr %scratches
  %helpers = load i32, ptr getelementptr (%pool, ptr @pool, i32 0, i32 6)
  %most_place = getelementptr %frame, ptr %frame, i32 0, i32 8
  %most = load i64, ptr %most_place
  %few = trunc i64 %most to i32
  %fewer = call i32 @llvm.umin.i32(i32 %helpers, i32 %few)
  store atomic i32 %fewer, ptr getelementptr (%pool, ptr @pool, i32 0, i32 6) monotonic, align 4
  %result = call i64 @run_steps(ptr %frame, ptr %scratch, i1 true)
  store atomic i32 %helpers, ptr getelementptr (%pool, ptr @pool, i32 0, i32 6) monotonic, align 4
  call void @release()
  br label %end
other:                            ; another thread has the pool: all of it is done here
  %bare = icmp eq i64 %bytes, 0
  br i1 %bare, label %alone, label %allocate
allocate:
  %up = add i64 %bytes, 64
  %rounded = and i64 %up, -64
  %block = call ptr @aligned_alloc(i64 64, i64 %rounded)
  %failed = icmp eq ptr %block, null
  br i1 %failed, label %end, label %alone
alone:
  %own = phi ptr [ null, %other ], [ %block, %allocate ]
  %done = call i64 @run_steps(ptr %frame, ptr %own, i1 false)
  call void @free(ptr %own)
  br label %end
end:
  %code = phi i64 [ -1, %refuse ], [ %result, %pooled ], [ -2, %allocate ], [ %done, %alone ]
  %arena_place = getelementptr %frame, ptr %frame, i32 0, i32 6
  %arena = load ptr, ptr %arena_place
  call void @give_back(ptr %arena)
  call void @give_back(ptr %frame)
  %is_over = call i1 @leave(i32 %entered)
  %answer = select i1 %is_over, i64 2147483647, i64 %code
  ret i64 %answer
}

declare i32 @llvm.umin.i32(i32, i32)

define internal i64 @run_steps(ptr %frame, ptr %scratch, i1 %is_shared) {
  %count_place = getelementptr %frame, ptr %frame, i32 0, i32 2
  %count = load i64, ptr %count_place
  %calls_place = getelementptr %frame, ptr %frame, i32 0, i32 3
  %calls = load ptr, ptr %calls_place
  %step_place = getelementptr %frame, ptr %frame, i32 0, i32 5
  %step = load ptr, ptr %step_place
  %end = getelementptr %call, ptr %calls, i64 %count
  br label %look
look:
  %call = phi ptr [ %calls, %0 ], [ %next, %one ], [ %behind, %several ], [ %next, %unless ], [ %there, %jump ]
  %more = icmp ult ptr %call, %end
  br i1 %more, label %see, label %fine
see:
  %due = load volatile i8, ptr @due
  %is_due = icmp ne i8 %due, 0
  br i1 %is_due, label %ask, label %each
ask:
  %is_given_up = call i1 @look(ptr %scratch)
  br i1 %is_given_up, label %fine, label %each
each:
  %next = getelementptr %call, ptr %call, i64 1
  %others_place = getelementptr %call, ptr %call, i32 0, i32 7
  %others = load i64, ptr %others_place
  %is_one = icmp eq i64 %others, 0
  br i1 %is_one, label %one, label %other
other:
  %is_jump = icmp slt i64 %others, 0
  br i1 %is_jump, label %leap, label %several
one:                              ; as several, but there is nothing to add up: its blocks begin at 0
  %signed = call i64 @count(ptr %call)
  %is_much = icmp sgt i64 %signed, 0
  %share = and i1 %is_much, %is_shared
  %number = call i64 @llvm.abs.i64(i64 %signed, i1 false)
  %blocks = and i64 %number, -4611686018427387905
  %end_place = getelementptr %call, ptr %call, i32 0, i32 3
  store i64 %blocks, ptr %end_place
  call void %step(ptr %call, i64 %number, ptr %scratch, i1 %share)
  %code = call i64 @failed(ptr %call)
  %holds = icmp eq i64 %code, 0
  br i1 %holds, label %look, label %wrong
several:
  %behind = getelementptr %call, ptr %next, i64 %others
  %first = call i64 @run_beside(ptr %call, ptr %behind, ptr %step, ptr %scratch, i1 %is_shared)
  %hold = icmp eq i64 %first, 0
  br i1 %hold, label %look, label %wrong
leap:
  %condition_place = getelementptr %call, ptr %call, i32 0, i32 6
  %may_stay = load i64, ptr %condition_place
  %is_bound = icmp eq i64 %may_stay, 0
  br i1 %is_bound, label %jump, label %unless
unless:
  %words_place = getelementptr %call, ptr %call, i32 0, i32 1
  %words = load ptr, ptr %words_place
  %flag_place = load ptr, ptr %words
  %flag = load i8, ptr %flag_place
  %stays = icmp ne i8 %flag, 0
  br i1 %stays, label %look, label %jump
jump:
  %to_place = getelementptr %call, ptr %call, i32 0, i32 2
  %to = load i64, ptr %to_place
  %there = getelementptr %call, ptr %calls, i64 %to
  br label %look
wrong:
  %which = phi i64 [ %code, %one ], [ %first, %several ]
  ret i64 %which
fine:
  ret i64 0
}

; Runs calls up to the one before `behind`: beside each other, or one by one where that isn't worth it. The result is
; the first one's whose assertion failed.
define internal i64 @run_beside(ptr %calls, ptr %behind, ptr %step, ptr %scratch, i1 %is_shared) noinline {
  br label %add_up
add_up:
  %call = phi ptr [ %calls, %0 ], [ %next, %add_up ]
  %begin = phi i64 [ 0, %0 ], [ %end, %add_up ]
  %any = phi i1 [ false, %0 ], [ %are_much, %add_up ]
  %signed = call i64 @count(ptr %call)
  %is_much = icmp sgt i64 %signed, 0
  %are_much = or i1 %any, %is_much
  %blocks = call i64 @llvm.abs.i64(i64 %signed, i1 false)
  %end = add i64 %begin, %blocks
  %begin_place = getelementptr %call, ptr %call, i32 0, i32 2
  store i64 %begin, ptr %begin_place
  %end_place = getelementptr %call, ptr %call, i32 0, i32 3
  store i64 %end, ptr %end_place
  %next = getelementptr %call, ptr %call, i64 1
  %is_last = icmp eq ptr %next, %behind
  br i1 %is_last, label %choose, label %add_up
choose:
  %helpers = load i32, ptr getelementptr (%pool, ptr @pool, i32 0, i32 6)
  %some = icmp ne i32 %helpers, 0
  %many = icmp sgt i64 %end, 1
  %can = and i1 %some, %many
  %is_worth = and i1 %is_shared, %are_much
  %share = and i1 %can, %is_worth
  br i1 %share, label %all, label %each
all:
  call void %step(ptr %calls, i64 %end, ptr %scratch, i1 true)
  br label %check
each:
  %alone = phi ptr [ %calls, %choose ], [ %other, %each ]
  %alone_begin_place = getelementptr %call, ptr %alone, i32 0, i32 2
  %alone_begin = load i64, ptr %alone_begin_place
  %alone_end_place = getelementptr %call, ptr %alone, i32 0, i32 3
  %alone_end = load i64, ptr %alone_end_place
  %its_blocks = sub i64 %alone_end, %alone_begin
  call void %step(ptr %alone, i64 %its_blocks, ptr %scratch, i1 false)
  %other = getelementptr %call, ptr %alone, i64 1
  %was_last = icmp eq ptr %other, %behind
  br i1 %was_last, label %check, label %each
check:
  %ran = phi ptr [ %calls, %all ], [ %calls, %each ], [ %following, %check ]
  %first = phi i64 [ 0, %all ], [ 0, %each ], [ %so_far, %check ]
  %code = call i64 @failed(ptr %ran)
  %none = icmp eq i64 %first, 0
  %so_far = select i1 %none, i64 %code, i64 %first
  %following = getelementptr %call, ptr %ran, i64 1
  %were_all = icmp eq ptr %following, %behind
  br i1 %were_all, label %done, label %check
done:
  ret i64 %so_far
}

; How many blocks a call has, negative where it is too quick for more than one thread; bit 62 where they are taken in order.
define internal i64 @count(ptr %call) {
  %blocks_of_place = getelementptr %call, ptr %call, i32 0, i32 4
  %blocks_of = load ptr, ptr %blocks_of_place
  %words_place = getelementptr %call, ptr %call, i32 0, i32 1
  %words = load ptr, ptr %words_place
  %signed = call i64 %blocks_of(ptr %words)
  ret i64 %signed
}

; 0, or the assertion that a call has failed, and in the upper half its kernel; the next time it is none again.
define internal i64 @failed(ptr %call) {
  %status_place = getelementptr %call, ptr %call, i32 0, i32 5
  %status = load ptr, ptr %status_place
  %number = load i64, ptr %status
  %holds = icmp eq i64 %number, 0
  br i1 %holds, label %fine, label %wrong
wrong:
  store i64 0, ptr %status
  %kernel_place = getelementptr %call, ptr %call, i32 0, i32 6
  %kernel = load i64, ptr %kernel_place
  %high = shl i64 %kernel, 32
  %code = or i64 %high, %number
  ret i64 %code
fine:
  ret i64 0
}
declare i64 @llvm.abs.i64(i64, i1)
