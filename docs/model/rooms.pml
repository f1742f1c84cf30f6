/* A bucket of later/ that comes and goes: a delayed put, a retry and consumers that remove it when it is empty.
 *
 *   spin -a rooms.pml && gcc -O2 -DSAFETY -o pan pan.c && ./pan
 *
 * Every call is one atomic step: mkdir, rename into the bucket (which says ENOENT if the bucket is not there), rename out
 * of it, rmdir (which fails if something is in it). A listing is not atomic: each name is looked at by itself, and others
 * may come and go in between. The minute of the bucket has begun: consumers look into it.
 *
 * Checked: no message is ever in a bucket that is not there; everybody comes to an end with every message acknowledged
 * once, so that no look misses a message for good (spin reports a client that is stuck as an invalid end state).
 *
 * TREE: the bucket is removed with what is in it. GIVEUP: a rename into a missing bucket is taken for a lost lease.
 * ONCE: a consumer never looks again into a bucket that it found empty.
 */

#define MESSAGES 2
#ifndef CONSUMERS
#define CONSUMERS 2
#endif

mtype = { new, waiting, leased, gone };

mtype where[MESSAGES] = new;    /* ID.new at the top; in the bucket; in leased/; acknowledged */
byte holder[MESSAGES];          /* the token of the lease */
byte retries = 1;               /* how often the message that is held first is given back */
bool there = false;             /* the bucket */

#define EMPTY (where[0] != waiting && where[1] != waiting)
#define FINISHED (where[0] == gone && where[1] == gone)

/* Move a message that is ours into the bucket: the same for a put and for a retry. */
inline into_bucket(m, from) {
  do
  :: d_step {                                    /* rename */
       if
       :: there -> assert(where[m] == from); where[m] = waiting; moved = true
       :: else -> moved = false                  /* ENOENT: the bucket, because the message is ours and there */
       fi
     };
     if
     :: moved -> break
     :: else ->
#ifdef GIVEUP
        break
#else
        there = true                             /* mkdir; "exists" is as good */
#endif
     fi
  od
}

active [MESSAGES] proctype producer() {
  bool moved;
  byte m = _pid;
  there = true;
  into_bucket(m, new)
}

active [CONSUMERS] proctype consumer() {
  byte m;
  bool moved, found, entered = true;

look:
  if
  :: FINISHED -> goto done
#ifdef ONCE
  :: there && entered
#else
  :: there
#endif
  fi;
  atomic { found = false; m = 0 };
  do
  :: m >= MESSAGES -> break
  :: m < MESSAGES && where[m] == waiting ->
       found = true;
       d_step {                                  /* claim: rename exactly the name that was seen, into leased/ */
         moved = (where[m] == waiting);
         if
         :: moved -> where[m] = leased; holder[m] = _pid
         :: else
         fi
       };
       if
       :: moved ->
            if
            :: retries > 0 -> retries--; into_bucket(m, leased)
            :: d_step { assert(where[m] == leased && holder[m] == _pid); where[m] = gone; holder[m] = 0 }
            fi
       :: else
       fi;
       atomic { moved = false; m++ }
  :: m < MESSAGES && where[m] != waiting -> m++
  od;
  m = 0;
  if
  :: found -> goto look
  :: else
  fi;
  d_step {                                       /* rmdir */
    if
#ifdef TREE
    :: there -> there = false
#else
    :: there && EMPTY -> there = false; entered = false
#endif
    :: else -> skip
    fi;
    assert(there || EMPTY)
  };
  goto look;
done:
  skip
}
