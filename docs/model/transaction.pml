/* The register of a transaction: its owner, whoever meets its names, a purge, a death at any call.
 *
 *   spin -a transaction.pml && gcc -O2 -DSAFETY -o pan pan.c && ./pan
 *
 * A transaction T takes messages and puts one. The name of a message is one cell: plain, held (X.un.T), or gone; that of a
 * put is staged (X.if.T), shown, or nothing. Every call is one atomic step on one name. The register is a cell too: absent,
 * a directory (aborted), or a file (committed): the kernel lets only one of the two be made, and that is the decision.
 *
 *   (nothing)   two owners take the same two messages; two helpers meet what they hold, and one owner may die
 *   -DNEED      the same, but each takes one message and needs the one that the other takes
 *   -DPURGE     one owner, two helpers and a purge, which fences the owner although it may be alive
 *
 * Checked: a name is applied only if its transaction was committed, and given back only if it was not; of two that take
 * the same, or that need what the other takes, one commits at most; in the end all of T has happened, or nothing.
 *
 * Mistakes to plant. OVERWRITE: the commit replaces what is in the register. MARKER: a helper removes the mark of an abort
 * when it is done. EARLY: the register is forgotten before the last name is at its end. UNFENCED (with PURGE): the purge
 * does not fence. LATE (with NEED): an owner looks at what it needs before it holds what it takes.
 */

#ifdef PURGE
#define OWNERS 1
#define OTHERS 4
#else
#define OWNERS 2
#define OTHERS 3
#endif
#define FREE 9

mtype = { absent, aborted, committed, staged, shown, nothing };

byte held[2] = FREE;               /* the transaction that holds message 0 and 1 */
bool taken[2];                     /* the message is gone */
mtype put[OWNERS] = nothing;       /* what the transaction puts */
mtype decision[OWNERS] = absent;   /* its register */
bool fenced;                       /* P of owner 0 was renamed to P.gone: nothing can be made in it */
bool dead;                         /* owner 0 */
bool did[OWNERS];                  /* what really happened, for the assertions */
byte ended = 0;

#define PLAIN(m) (held[m] == FREE && !taken[m])
#define FENCED(t) (t == 0 && fenced)

/* Bring every name of a transaction to its end, one call each; anybody may. */
inline apply(t) {
  d_step { if :: put[t] == staged -> assert(did[t]); put[t] = shown :: else fi };
  d_step { if :: held[0] == t -> assert(did[t]); held[0] = FREE; taken[0] = true :: else fi };
#ifdef EARLY
  d_step { if :: decision[t] == committed -> decision[t] = absent :: else fi };
#endif
  d_step { if :: held[1] == t -> assert(did[t]); held[1] = FREE; taken[1] = true :: else fi }
}

inline undo(t) {
  d_step { if :: put[t] == staged -> assert(!did[t]); put[t] = nothing :: else fi };
  d_step { if :: held[0] == t -> assert(!did[t]); held[0] = FREE :: else fi };
  d_step { if :: held[1] == t -> assert(!did[t]); held[1] = FREE :: else fi }
}

inline hold(m) { if :: failed :: !failed -> d_step { if :: PLAIN(m) -> held[m] = t :: else -> failed = true fi } fi }
inline need(m) { if :: failed :: !failed -> d_step { if :: PLAIN(m) :: else -> failed = true fi } fi }

active [OWNERS] proctype owner() {
  byte t = _pid;
  bool failed = false;

  {
    put[t] = staged;
#ifndef NEED
    hold(0);
    hold(1);
#else
#ifdef LATE
    need(1 - t);
    hold(t);
#else
    hold(t);
    need(1 - t);
#endif
#endif
    if
    :: failed
    :: !failed ->
       d_step {                    /* the commit: ONE call */
         if
#ifdef OVERWRITE
         :: !FENCED(t) -> decision[t] = committed; did[t] = true
#else
         :: !FENCED(t) && decision[t] == absent -> decision[t] = committed; did[t] = true
#endif
         :: else -> failed = true
         fi
       }
    fi;
    if
    :: !failed ->
       apply(t);
       d_step { if :: !FENCED(t) -> decision[t] = absent :: else fi }                            /* forget */
    :: failed ->
       undo(t);
       d_step { if :: !FENCED(t) && decision[t] == aborted -> decision[t] = absent :: else fi }
    fi
  } unless { dead && _pid == 0 };
  atomic { failed = false; ended++ }
}

active proctype reaper() {
  atomic { if :: dead = true :: skip fi; ended++ }
}

/* Whoever meets a name: a consumer, another transaction. Its look at the name may be long ago. */
active [2] proctype helper() {
  byte t = 0;
  mtype verdict;

  if
  :: atomic { held[0] != FREE -> t = held[0] }
  :: atomic { held[1] != FREE -> t = held[1] }
  :: put[0] == staged
  :: skip -> goto done
  fi;
  verdict = decision[t];           /* look */
  if
  :: verdict == absent ->
     d_step {                      /* abort: mkdir. What is in no register of a fenced P cannot be committed any more. */
       if
       :: decision[t] != absent -> verdict = decision[t]
       :: decision[t] == absent && FENCED(t) -> verdict = aborted
       :: decision[t] == absent && !FENCED(t) -> decision[t] = aborted; verdict = aborted
       fi
     }
  :: else
  fi;
  if
  :: verdict == committed -> apply(t)
  :: else ->
     undo(t);
#ifdef MARKER
     d_step { if :: decision[t] == aborted -> decision[t] = absent :: else fi }
#endif
  fi;
done:
  atomic { t = 0; verdict = absent; ended++ }
}

#ifdef PURGE
/* The purge of a space: fence P, bring every name to its end, remove P. */
active proctype purge() {
  mtype verdict;
#ifndef UNFENCED
  fenced = true;
#endif
  verdict = decision[0];
  if
  :: verdict == committed -> apply(0)
  :: else -> undo(0)
  fi;
  /* If a listing that began after the fence shows none of its names, P goes. */
  if
  :: held[0] == FREE ->
     if
     :: held[1] == FREE -> if :: put[0] != staged -> decision[0] = absent :: else fi
     :: else
     fi
  :: else
  fi;
  atomic { verdict = absent; ended++ }
}
#endif

/* When all have ended, whoever comes next brings what the dead left to its end; then it is all or nothing. */
active proctype afterwards() {
  byte t = 0;
  (ended == OWNERS + OTHERS);
  do
  :: t >= OWNERS -> break
  :: t < OWNERS ->
     if
     :: decision[t] == committed -> apply(t)
     :: else -> undo(t)
     fi;
     assert(did[t] == (put[t] == shown));
#ifdef NEED
     assert(did[t] == taken[t]);
#endif
     t++
  od;
#ifndef NEED
  assert(taken[0] == taken[1]);
#endif
#ifndef PURGE
  assert(!(did[0] && did[1]));
#ifndef NEED
  assert(taken[0] == (did[0] || did[1]));
#endif
#else
  assert(taken[0] == did[0]);
#endif
}
