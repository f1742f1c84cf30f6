/* The lease protocol of one message, with two or more clients: claim, renew, ack, release, expiry.
 *
 *   spin -a -DTOKEN lease.pml && gcc -O2 -DSAFETY -o pan pan.c && ./pan
 *
 * The queue is one cell: the name the message has now, with the room it lies in; a rename between rooms is as atomic as
 * one within a directory. (That a bucket may be missing is in rooms.pml, names under a condition are in transaction.pml.)
 * A name is a number; 0 is the ready name, GONE means acknowledged. Every call (rename, unlink) is one atomic step that
 * compares the whole name and changes it, and between any two steps of a client the others, and the clock, may do anything.
 *
 * With TOKEN each lease gets a name never used before. Without, a name is made of the expiry alone, as in VSQS: then
 * the assertion fails (a stale holder ends a lease that is not its own). BYID: ack deletes whatever has the id.
 * BLIND: a renewal gives the message its new name whatever the old one is by then.
 */

#ifndef NC
#define NC 2
#endif
#define GONE 31
#define LEASE 2
#define LAST 4            /* the clock stops here, so that the space is finite */
#define ROUNDS 2

byte name = 0;            /* the name on disk */
byte owner = GONE;        /* who made it: what the name really means */
byte now = 1;
byte fresh = 16;          /* the next name that nobody has used */
byte acks = 0;
byte until_of[32];        /* what a name says about its end */

inline new_name(n, u) {
#ifdef TOKEN
  n = fresh; fresh++;
#else
  n = 1 + u;              /* the expiry, and nothing else */
#endif
}

active proctype clock() {
  do
  :: now < LAST -> now++
  :: now >= LAST -> break
  od
}

active [NC] proctype client() {
  byte mine, seen, target, end;
  byte rounds = 0;

next:
  if
  :: rounds >= ROUNDS -> goto done
  :: else -> rounds++
  fi;

  /* look: a listing is only a hint */
  atomic {
    seen = name;
    if
    :: seen == GONE -> goto done
    :: seen != 0 && until_of[seen] > now -> goto next   /* somebody's live lease */
    :: else -> end = now + LEASE
    fi
  }

  /* claim: rename exactly the name that was seen, ready or expired, straight to a new one */
  d_step {
    new_name(target, end);
    if
    :: name == seen -> name = target; owner = _pid; until_of[target] = end; mine = target
    :: else -> mine = GONE
    fi
  }
  if
  :: mine == GONE -> goto next
  :: else
  fi;

  /* hold: maybe renew, which is the same compare-and-swap */
  if
  :: skip
  :: d_step {
       end = now + LEASE;
       new_name(target, end);
       if
#ifdef BLIND
       :: name != GONE ->
#else
       :: name == mine ->
#endif
            assert(owner == _pid);   /* what we renew is ours */
            name = target; owner = _pid; until_of[target] = end; mine = target
       :: else -> mine = GONE        /* LeaseLost */
       fi
     }
  fi;
  if
  :: mine == GONE -> goto next
  :: else
  fi;

  /* end: ack, or give it back */
  if
  :: d_step {
#ifdef BYID
       if
       :: name != GONE -> assert(owner == _pid); name = GONE; acks++
#else
       if
       :: name == mine -> assert(owner == _pid); name = GONE; acks++
#endif
       :: else -> skip               /* LeaseLost: nothing is touched */
       fi
     }
  :: d_step {
       if
       :: name == mine -> assert(owner == _pid); name = 0; owner = GONE
       :: else -> skip
       fi
     }
  fi;
  assert(acks <= 1);
  goto next;
done:
  skip
}
