#!/bin/sh
# The dirqueue protocol in plain shell, as a proof that it is simple.
#   protocol.sh put QUEUE < body      prints the id; put QUEUE --link BODY makes a link, in one call
#   protocol.sh get QUEUE [SECONDS]   prints a handle; exit 3 if there is nothing. The body is the file QUEUE/HANDLE, or,
#                                     if that is a link, what follows the colon in its target
#   protocol.sh ack QUEUE HANDLE      exit 4 if the lease was lost
# For local filesystems; needs GNU date, od, ln, mv. It leaves out settings, delays and retries: see protocol.pl.
set -eu; LC_ALL=C; export LC_ALL
verb=$1 queue=$2 attempts_max=5
[ ! -e "$queue/queue.json" ] || { echo "$queue has settings, which this script does not know" >&2; exit 1; }
micros() { echo $(($(date +%s%N) / 1000)); }
flush() { case $(stat -f -c %T "$queue") in btrfs) sync -f "$queue";; *) sync "$1";; esac; }
random() { od -An -N4 -tu4 /dev/urandom | tr -d ' '; }

put() {
    mkdir -p "$queue"
    id=$(micros)$(printf '%09d' $(($(random) % 1000000000)))
    if [ "${1-}" = --link ]; then ln -s ":$2" "$queue/$id"; flush "$queue"; echo "$id"; return; fi
    (set -C; cat > "$queue/$id.new")          # set -C: never onto a file that exists
    sync "$queue/$id.new"
    ln "$queue/$id.new" "$queue/$id"          # a link never overwrites; the message is visible now
    rm "$queue/$id.new"; flush "$queue"; echo "$id"
}

# Make a room, and a bucket in it; they have the queue's own mode.
room() { for dir in "${1%%/*}" "$1"; do mkdir -m "$(stat -c %a "$queue")" "$queue/$dir" || true; done 2>/dev/null; }
# List everything that may hold messages.
places() { cd "$queue" && ls -d . leased *.slice *.batch *.batch/*.part later/* later/*/*.batch later/*/*.batch/*; }
# Lines "ID PATH ATTEMPTS" of what may be claimed now: ready, delayed and due, leased and expired (a second's margin).
claimable() {
    places 2>/dev/null | while read -r place; do
        ls "$queue/$place" | awk -v now="$(micros)" -v prefix="$place/" '
            function digits(s) { return s ~ /^[1-9][0-9]*$/ }
            { n = split($0, f, ".") }
            !digits(f[1]) || length(f[1]) < 25 || /~/                            { next }    # ~: a task of a space
            n == 1                                                               { print f[1], prefix $0, 0 }
            (n == 3 || n == 4) && digits(f[2]) && f[2] + 1000000 * (n - 3) <= now  { print f[1], prefix $0, f[3] }'
    done 2>/dev/null | sort
}

get() {
    [ ! -f "$queue/paused" ] || exit 3
    host=$(uname -n | tr -c 'A-Za-z0-9\n' _)
    claimable | while read -r id path attempts; do
        case $(readlink "$queue/$path") in :*) ;; "") [ -f "$queue/$path" ];; *) false;; esac || continue
        now=$(micros); to=leased/$id.$((now + ${1:-30} * 1000000)).$((attempts + 1)).$host-$$-$(random)
        [ "$attempts" -lt $attempts_max ] || to=dead/$((now - now % 3600000000))/$id.$now.$attempts
        room "${to%/*}"
        # The exact name goes to one that nobody else can make: of two that try, one finds it gone.
        mv -T "$queue/$path" "$queue/$to" 2>/dev/null || continue
        mv "$queue/${path%/*}/$id.error" "$queue/${to%/*}/" 2>/dev/null || true    # why it failed last
        [ "${to%%/*}" = dead ] || { echo "$to"; break; }
    done | grep . || exit 3
}

ack() {
    rm "$queue/$1" 2>/dev/null || exit 4
    id=${1##*/}; rm -f "$queue/leased/${id%%.*}.error"; flush "$queue/leased"
}
shift 2; "$verb" "$@"
