#!/bin/sh
# The dirqueue protocol in plain shell, as a proof that it is simple.
#   protocol.sh put QUEUE < body      prints the id
#   protocol.sh get QUEUE [SECONDS]   prints a handle; the body is the file QUEUE/HANDLE; exit 3 if there is nothing
#   protocol.sh ack QUEUE HANDLE      exit 4 if the lease was lost
# For local filesystems; needs GNU date, od, ln, mv. It leaves out settings, delays and retries: see protocol.pl.
set -eu; LC_ALL=C; export LC_ALL
verb=$1 queue=$2 attempts_max=5
[ ! -e "$queue/queue.json" ] || { echo "$queue has settings, which this script does not know" >&2; exit 1; }

micros() { echo $(($(date +%s%N) / 1000)); }
random() { od -An -N4 -tu4 /dev/urandom | tr -d ' '; }

put() {
    mkdir -p "$queue"
    id=$(micros)$(printf '%09d' $(($(random) % 1000000000)))
    (set -C; cat > "$queue/$id.new")          # set -C: never onto a file that exists
    sync "$queue/$id.new"
    ln "$queue/$id.new" "$queue/$id"          # a link never overwrites; the message is visible now
    rm "$queue/$id.new"
    sync "$queue"; echo "$id"
}

# Everything that may hold messages, the queue itself first.
places() { echo .; (cd "$queue" && ls -d ./*.slice ./*.batch ./*.batch/*.part 2>/dev/null) || true; }

# Lines "ID PATH ATTEMPTS" of what may be claimed now: ready, delayed and due, leased and expired (a second's margin).
claimable() {
    places | while read -r place; do
        [ "$place" = . ] && prefix= || prefix=${place#./}/
        ls "$queue/$place" 2>/dev/null | awk -v now="$(micros)" -v prefix="$prefix" '
            function digits(s) { return s ~ /^[1-9][0-9]*$/ }
            { n = split($0, f, ".") }
            !digits(f[1]) || length(f[1]) < 25                                   { next }
            n == 1                                                               { print f[1], prefix $0, 0 }
            (n == 3 || n == 4) && digits(f[2]) && f[2] + 1000000 * (n - 3) <= now  { print f[1], prefix $0, f[3] }'
    done | sort
}

get() {
    host=$(uname -n | tr -c 'A-Za-z0-9\n' _)
    claimable | while read -r id path attempts; do
        [ -f "$queue/$path" ] && [ ! -L "$queue/$path" ] || continue
        until=$(($(micros) + ${1:-30} * 1000000))
        lease=${path%"${path##*/}"}$id.$until.$((attempts + 1)).$host-$$-$(random)
        [ "$attempts" -lt $attempts_max ] || { mkdir -p "$queue/dead"; lease=dead/$id.$(micros).$attempts; }
        # The exact name goes to one that nobody else can make: of two that try, one finds it gone.
        mv -T "$queue/$path" "$queue/$lease" 2>/dev/null || continue
        [ "${lease%%/*}" = dead ] || { echo "$lease"; break; }
    done | grep . || exit 3
}

ack() {
    rm "$queue/$1" 2>/dev/null || exit 4
    folder=$queue/$(dirname "$1") id=${1##*/}; rm -f "$folder/${id%%.*}.error"
    sync "$folder" 2>/dev/null || [ ! -d "$folder" ]    # another consumer may have removed the emptied batch
}

shift 2
"$verb" "$@"
