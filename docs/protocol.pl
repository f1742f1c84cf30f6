#!/usr/bin/perl
# The dirqueue protocol in Perl, written from protocol.md alone, with core modules only.
#   protocol.pl put QUEUE [body=TEXT] [delay=S] [priority=N]  prints the id; the body is standard input if not given
#   protocol.pl get QUEUE [lease=S]                prints a handle; the body is the file QUEUE/HANDLE or,
#                                                  if that is a link, what follows the colon in its target
#   protocol.pl renew QUEUE HANDLE [lease=S]       prints the new handle
#   protocol.pl ack | release QUEUE HANDLE
#   protocol.pl retry | reject QUEUE HANDLE [error=TEXT]
#   protocol.pl redrive QUEUE [ID]...              prints the ids
#   protocol.pl purge QUEUE                        prints how many things it removed or moved
# Without arguments it reads such lines from standard input and answers each with a line "STATUS OUTPUT".
# Status: 0 done, 1 refused or failed, 2 usage, 3 nothing there, 4 the lease was lost.
# Without a queue.json settings are words too: max_attempts=3. For local filesystems only. Left out, as the page
# allows: writing slices and batches, max_messages, cancel and change, waiting, the ballast, purging .spark and staging.
use strict;
use warnings;
use Errno qw(ENOENT EEXIST);
use Fcntl qw(:DEFAULT :flock :mode);
use IO::Handle;
use JSON::PP;
use Sys::Hostname;
use Time::HiRes qw(gettimeofday lstat utime);

my %DEFAULT = (
    format => 1, layout => 'auto', sync => 1, priorities => 0, default_priority => 5, max_messages => 0, max_size => 0,
    lease => 30, margin => 1, max_attempts => 5, backoff => 1, max_backoff => 300, order => 'fifo', keep_done => 0,
    keep_done_for => 604800, keep_dead_for => 0, keep_expired => 1, stale => 3600, links => 0,
    schema => undef, granularity => 60, maxelts => 16000, annotate => 0, milliseconds => 0,
);
my $ID     = qr/[1-9][0-9]{12}|[1-9][0-9]{15}|[1-9][0-9]{24,33}/;
my $UNTIL  = qr/[1-9][0-9]{12}|[1-9][0-9]{15}/;
my $OTHER  = qr/new|error|error\.new|batch|batch\.new|slice|part/;
my $NAME   = qr/\A($ID)(?:\.($UNTIL)(?:\.(0|[1-9][0-9]{0,5})(?:\.([\w-]{1,100})(\.ack)?)?)?|\.($OTHER))?\z/a;
my $INSIDE = qr{\A(?:leased/|(?:(?:$ID)\.(?:batch|slice|part)/){0,2})\z};
my ($MINUTE, $HOUR) = (60_000_000, 3_600_000_000);
my %MESSAGE   = map { $_ => 1 } qw(ready delayed leased);
my %DIRECTORY = map { $_ => 1 } qw(batch batch.new slice part);

my ($Q, %S);    # the queue and its settings
my ($last, $count) = (10**15, 0);
my $unique = sprintf '%09d', random() % 1_000_000_000;
my $stem = sprintf '%s-%d-%x', hostname() =~ tr/A-Za-z0-9_-/_/cr, $$, random();

sub random { open my $f, '<:raw', '/dev/urandom' or die $!; read $f, my $bytes, 8; unpack('Q', $bytes) >> 1 }
sub now    { my ($s, $us) = gettimeofday(); $s * 1_000_000 + $us }
sub after  { int(now() + $_[0] * 1e6) }
sub most   { $_[0] > $_[1] ? $_[0] : $_[1] }
sub new_id { $last = most(now(), $last + 1); "$last$unique" }
sub token  { $stem . '-' . ++$count }
sub stop   { die { status => $_[0], text => $_[1] } }

# --- names --------------------------------------------------------------------------------------------------------

sub parse {    # nothing if the name is foreign
    my ($id, $until, $n, $token, $ack, $kind) = $_[0] =~ $NAME or return;
    $kind //= !defined $until ? 'ready' : defined $n && !defined $token ? 'delayed' : $ack ? 'acked' : 'leased';
    $until .= '000' if defined $until && length $until == 13;
    return (id => $id, kind => $kind, until => $until // 0, n => $n // ($until ? 1 : 0), token => $token // '');
}

sub order {    # (PRIORITY, TIME UNIQUE)
    my $id = shift;
    return length $id > 25 ? (substr($id, 0, -25), substr($id, -25)) : (0, $id . '0' x (25 - length $id));
}

sub is_body {    # a file, or a link of ours: its target is a colon and the body
    my $m = shift;
    return S_ISREG($m->{mode}) || S_ISLNK($m->{mode}) && (readlink("$Q/$m->{path}") // '') =~ /\A:/;
}
sub there { my @facts = lstat "$Q/$_[0]{path}"; return scalar @facts }

sub list {     # what is ours in one directory, and of the right type
    my $dir = shift;
    opendir my $d, "$Q/$dir" or return;
    return grep { $_->{kind} && ($DIRECTORY{ $_->{kind} } ? S_ISDIR($_->{mode}) : is_body($_)) }
        map { my (undef, undef, $mode, @f) = lstat "$Q/$dir$_";
              defined $mode ? { parse($_), dir => $dir, path => "$dir$_", mode => $mode, mtime => $f[6] } : () } readdir $d;
}

sub buckets { opendir my $d, "$Q/$_[0]" or return; return sort grep { /\A[1-9][0-9]{15}\z/a && -d "$Q/$_[0]$_" } readdir $d }
sub later   { my ($id, $until, $n) = @_; 'later/' . ($until - $until % $MINUTE) . "/$id.$until.$n" }
sub ended   { my ($room, $m, $now) = (@_, now()); "$room/" . ($now - $now % $HOUR) . "/$m->{id}.$now.$m->{n}" }

sub walk {     # one directory, the batches and slices in it, and their parts
    my ($dir, $inner) = (@_, qr/\A(?:batch|slice)\z/);
    my @found = list($dir);
    return @found, map { walk("$_->{path}/", qr/\Apart\z/) } grep { $_->{kind} =~ $inner } @found;
}

sub live {     # what waits or is held; what waits for a minute that has not begun is left alone
    my $now = now();
    return walk(''), walk('leased/'), map { walk("later/$_/") } grep { $_ <= $now } buckets('later/');
}

sub kept { my $room = shift; return map { list($_) } "$room/", map { "$room/$_/" } buckets("$room/") }

sub is_over  { my ($m, $now) = @_; $m->{until} + ($m->{kind} eq 'leased' ? $S{margin} * 1e6 : 0) <= $now }
sub is_spent { my $m = shift; $m->{n} && $S{max_attempts} && $m->{n} >= $S{max_attempts} }

# --- files --------------------------------------------------------------------------------------------------------

sub sync_dir {    # btrfs flushes a rename into a directory apart from what it left, so there it is the whole filesystem
    return if !$S{sync};
    return system('sync', '-f', $Q) if `stat -f -c %T \Q$Q\E` eq "btrfs\n";
    for my $dir (@_) {
        sysopen(my $d, $dir, O_RDONLY | O_DIRECTORY) or $! == ENOENT ? next : stop(1, "$dir: $!");
        $d->sync or stop(1, "cannot sync $dir: $!");
    }
}

sub make {    # a directory; inside the queue it gets the queue's own mode
    my ($path, $above) = @_;
    if (mkdir $path, 0777) { chmod S_IMODE((lstat $Q)[2]), $path if $path ne $Q }
    elsif ($! != EEXIST) { stop(1, "cannot make $path: $!") }
    sync_dir($above);
}

sub create {    # a whole new file, or none
    my ($path, $data, $sync) = @_;
    sysopen(my $f, $path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0666) or stop(1, "cannot create $path: $!");
    binmode $f;
    my $written = print({$f} $data) && $f->flush && (!$sync || $f->sync);
    return if close($f) && $written;
    unlink $path;
    stop(1, "cannot write $path: $!");
}

sub publish {    # by link, which never replaces; by rename where there are no hard links
    my ($new, $name) = @_;
    return unlink $new if link $new, $name;
    return $! != EEXIST && $! != ENOENT && rename $new, $name;
}

sub into {       # a room, and the bucket in it
    my ($room, $bucket) = split m{/}, shift;
    make("$Q/$room", $Q);
    make("$Q/$room/$bucket", "$Q/$room") if $bucket =~ /\A[0-9]{16}\z/;
}

sub move {       # the exact name to one that nobody else can make; its bucket may have to be made, or made again
    my ($m, $to) = @_;
    for (1 .. 20) {
        return $to if rename "$Q/$m->{path}", "$Q/$to";
        $! == ENOENT or stop(1, "cannot rename in $Q: $!");
        there($m) && $to =~ m{/} or stop(4, "$m->{path} is gone");
        into($to);
    }
    stop(1, "the directory of $to is removed as fast as it is made");
}

sub beside { "$Q/" . ($_[0] =~ s{[^/]+\z}{}r) . "$_[1]{id}.error" }    # where the note of a message lies

sub note {       # a comment: if it cannot be written, go on
    my ($path, $error, $leased) = @_;
    unlink "$path.new";
    eval { create("$path.new", encode_json({ error => $error, at => now(), leased_at => $leased }), 0) };
    rename "$path.new", $path;
}

# --- changes ------------------------------------------------------------------------------------------------------

sub held {       # the lease that a handle names; its last rename was the claim or a renewal
    my ($dir, $name) = ($_[0] // '') =~ m{\A(.*/)?([^/]+)\z}s or stop(2, 'a handle is missing');
    my %m = parse($name);
    stop(2, "$_[0] is not the handle of a lease") if ($m{kind} // '') ne 'leased' || ($dir // '') !~ $INSIDE;
    my @facts = lstat "$Q/$_[0]" or stop(4, "$_[0] is gone");
    return { %m, dir => $dir // '', path => $_[0], leased => int $facts[10] * 1e6 };
}

sub change {     # the note is written before, or goes along after
    my ($m, $to, $error) = @_;
    my ($old, $new) = (beside($m->{path}, $m), beside($to, $m));
    if (defined $error) { into($to); note($new, $error, $m->{leased}) }
    eval { move($m, $to); 1 } or do { my $why = $@; unlink $new if defined $error && $old ne $new; die $why };
    if ($old ne $new) { defined $error ? unlink $old : rename $old, $new }
    return $to;
}

sub to_dead {
    my ($m, $error) = @_;
    there($m) or stop(4, "$m->{path} is gone");
    my $dead = ended('dead', $m);
    change($m, $dead, $error);
    sync_dir("$Q/" . ($dead =~ s{/[^/]+\z}{}r), "$Q/$m->{dir}");
    return '';
}

sub bury_spent { # out of attempts: whoever meets it moves it, and another program may be faster
    my $m = shift;
    my $why = "delivered $m->{n} times and never acknowledged" . ($m->{token} && ", last held by $m->{token}");
    eval { to_dead($m, $m->{kind} eq 'leased' ? $why : undef); 1 } or ref $@ && $@->{status} == 4 ? 0 : die $@;
}

sub put {
    my %word = @_;
    my $body = $word{body} // do { local $/; binmode STDIN; <STDIN> // '' };
    stop(1, 'the body is longer than max_size') if $S{max_size} && length $body > $S{max_size};
    stop(1, 'this queue has no priorities') if $word{priority} && !$S{priorities};
    my $lead = $S{priorities} ? $word{priority} // $S{default_priority} : '';
    for (1 .. 20) {
        my $id = $lead . new_id();
        my $to = $word{delay} ? later($id, after($word{delay}), 0) : $id;
        create("$Q/$id.new", $body, $S{sync});
        into($to) if $to ne $id;
        if (publish("$Q/$id.new", "$Q/$to")) {
            sync_dir("$Q/" . ($to =~ s{[^/]+\z}{}r));
            return $id;
        }
        unlink "$Q/$id.new";
    }
    stop(1, "cannot put to $Q: $!");
}

sub get {
    my $turn = $S{order} eq 'lifo' ? -1 : 1;
    for (-f "$Q/paused" ? () : 1 .. 2) {    # a listing may miss a name that is being renamed
        my $now = now();
        my @due = map { [$_, order($_->{id})] } grep { $MESSAGE{ $_->{kind} } && is_over($_, $now) } live();
        for my $m (map { $_->[0] } sort { $a->[1] <=> $b->[1] || $turn * ($a->[2] cmp $b->[2]) } @due) {
            if (is_spent($m)) { bury_spent($m); next }
            my $n = $m->{n} < 999_999 ? $m->{n} + 1 : $m->{n};
            my $lease = join '.', "leased/$m->{id}", most(after($S{lease}), $m->{until} + 1), $n, token();
            eval { change($m, $lease); 1 } ? return $lease : ref $@ && $@->{status} == 4 || die $@;
        }
    }
    stop(3, "nothing to get from $Q");
}

sub ack {
    my $m = held(shift);
    if ($S{keep_done}) {
        my $done = ended('done', $m);
        utime $m->{leased} / 1e6, $m->{leased} / 1e6, "$Q/$m->{path}";
        move($m, $done);
        sync_dir("$Q/" . ($done =~ s{/[^/]+\z}{}r));
    } elsif (!unlink "$Q/$m->{path}") { $! == ENOENT ? stop(4, "$m->{path} is gone") : stop(1, "cannot ack: $!") }
    unlink "$Q/$m->{dir}$m->{id}.error";
    sync_dir("$Q/$m->{dir}");
    return '';
}

sub renew {
    my $m = held(shift);
    return change($m, join '.', "leased/$m->{id}", most(after($S{lease}), $m->{until} + 1), $m->{n}, token());
}

sub release {
    my $m = held(shift);
    $m->{n} > 1 ? change($m, later($m->{id}, now(), $m->{n} - 1)) : move($m, $m->{id});
    return '';
}

sub retry {
    my ($m, %word) = (held(shift), @_);
    return to_dead($m, $word{error} // "failed $m->{n} times") if is_spent($m);
    my $pause = $S{backoff} * 2**($m->{n} - 1);
    $pause = $S{max_backoff} if $pause > $S{max_backoff};
    change($m, later($m->{id}, after($pause * (0.5 + rand 0.5)), $m->{n}), $word{error});
    return '';
}

sub reject { my ($m, %word) = (held(shift), @_); to_dead($m, $word{error} // 'rejected') }

sub redrive {
    my %only = map { $_ => 1 } grep { /\A$ID\z/ } @_;
    my @dead = grep { $_->{kind} eq 'delayed' && (!%only || $only{ $_->{id} }) } kept('dead');
    my @back = grep { rename "$Q/$_->{path}", "$Q/$_->{id}" } @dead;    # not by link: killed in between, it would be both
    unlink "$Q/$_->{dir}$_->{id}.error" for @back;
    sync_dir($Q);
    return join ' ', map { $_->{id} } @back;
}

sub purge {
    sysopen(my $lock, "$Q/.purge.lock", O_RDWR | O_CREAT, 0666) or stop(1, "$Q/.purge.lock: $!");
    flock $lock, LOCK_EX | LOCK_NB or return 0;    # another purger is at work
    my ($now, $limit, $changed) = (now(), $S{stale} * 1e6, 0);
    my @all = (live(), kept('dead'), kept('done'));
    my %noted = map { $_->{dir} . $_->{id} => 1 } grep { $MESSAGE{ $_->{kind} } && $_->{n} } @all;
    for my $m (@all) {
        my ($kind, $ended) = ($m->{kind}, $m->{dir} =~ m{\A(dead|done)/});
        my $put = substr +(order($m->{id}))[1], 0, 16;
        my $old = $m->{mtime} * 1e6 + $limit < $now;
        my $gone
            = $kind =~ /\A(?:error\.)?new\z/ ? $old && $put + $limit < $now
            : $kind eq 'error' ? $old && !$noted{ $m->{dir} . $m->{id} }
            : $kind eq 'acked' ? $m->{until} + $limit < $now
            : $ended           ? $S{"keep_${ended}_for"} && $m->{until} + $S{"keep_${ended}_for"} * 1e6 < $now
            :                    0;
        if    ($gone) { $changed += unlink "$Q/$m->{path}" }
        elsif ($kind eq 'slice' ? $put + 2e6 < $now : $kind =~ /\A(?:batch|part)\z/) { $changed += rmdir "$Q/$m->{path}" }
        elsif (!$ended && $MESSAGE{$kind} && is_spent($m) && is_over($m, $now)) { $changed += bury_spent($m) }
    }
    for my $bucket (map { my $room = $_; map { [$_, "$room/$_"] } buckets("$room/") } qw(later dead done)) {
        $changed += rmdir "$Q/$bucket->[1]" if $bucket->[0] + $HOUR < $now;    # others may be about to use a later one
    }
    return $changed;
}

# --- the command line ---------------------------------------------------------------------------------------------

my %VERB = (
    put => \&put, get => \&get, ack => \&ack, renew => \&renew, release => \&release, retry => \&retry,
    reject => \&reject, redrive => \&redrive, purge => \&purge,
);

sub settings {    # what queue.json says, and where it says nothing what the command does
    my %word = @_;
    my $stored = {};
    if (sysopen my $f, "$Q/queue.json", O_RDONLY | O_NOFOLLOW) { $stored = eval { local $/; decode_json(<$f>) } }
    elsif ($! != ENOENT) { stop(1, "$Q/queue.json: $!") }
    stop(1, "$Q/queue.json is not a JSON object") if ref $stored ne 'HASH';
    for (keys %$stored) { stop(1, "$Q/queue.json has a key $_ that this program does not know") if !exists $DEFAULT{$_} }
    my %asked = map { $_ => $word{$_} } grep { exists $DEFAULT{$_} } keys %word;
    my %all = (%DEFAULT, %asked, %$stored, exists $asked{lease} ? (lease => $asked{lease}) : ());
    stop(1, "$Q is of another format or layout") if $all{format} ne '1' || $all{layout} !~ /\A(?:auto|native)\z/;
    return %all;
}

sub run {
    my ($verb, $path, @words) = @_;
    stop(2, 'usage: protocol.pl VERB QUEUE [WORD]...') if !defined $path || !$VERB{$verb};
    $Q = $path;
    my %word = map { /\A([a-z_]+)=(.*)\z/s ? ($1, $2) : () } @words;
    %S = settings(%word);
    make($Q, "$Q/..") if $verb eq 'put' && !-d $Q;
    return $VERB{$verb}->((grep { !/\A[a-z_]+=/ } @words), %word);
}

sub answer { my $out = eval { run(@_) }; $@ ? ref $@ ? ($@->{status}, $@->{text}) : (1, "$@") : (0, $out) }

if (@ARGV) {
    my ($status, $text) = answer(@ARGV);
    print { $status ? *STDERR : *STDOUT } "$text\n" if length $text;
    exit $status;
}
STDOUT->autoflush(1);
while (my $line = <STDIN>) { chomp $line; print join(' ', answer(split ' ', $line)) . "\n" }
