# Perl's Directory::Queue under the same work as `floor store`: queue.pl simple|normal store DIR COUNT SIZE TAKE
use strict;
use warnings;
use Directory::Queue;
use Time::HiRes qw(time clock_gettime CLOCK_PROCESS_CPUTIME_ID);

my ($type, $work, $dir, $count, $size, $take) = @ARGV;
die "usage: queue.pl simple|normal store DIR COUNT SIZE TAKE\n" unless defined $take and $work eq "store";
my %options = (path => $dir, type => ucfirst($type));
$options{schema} = { body => "binary" } if $type eq "normal";
my $queue = Directory::Queue->new(%options);
my $pad = "x" x ($size > 33 ? $size - 33 : 0);
my (%seen, @each);

sub report {
    my ($name, $cpu, $wall) = @_;
    my @sorted = sort { $a <=> $b } @each;
    my @points = map { sprintf "%.3f", 1e6 * $sorted[int($_ * $#sorted)] } 0.5, 0.9, 0.99, 1;
    printf '"%s": {"count": %d, "cpu": %.9f, "wall": %.9f, "us": [%s]}', $name, scalar(@each), $cpu, $wall,
        join(", ", @points);
}

my ($cpu, $began) = (clock_gettime(CLOCK_PROCESS_CPUTIME_ID), time);
my $last = $began;
for my $number (0 .. $count - 1) {
    my $body = sprintf("%012d %019d ", $number, 0) . $pad;
    $type eq "normal" ? $queue->add(body => $body) : $queue->add($body);
    my $now = time;
    push @each, $now - $last;
    $last = $now;
}
print "{";
report("put", clock_gettime(CLOCK_PROCESS_CPUTIME_ID) - $cpu, $last - $began);
@each = ();
($cpu, $began) = (clock_gettime(CLOCK_PROCESS_CPUTIME_ID), time);
$last = $began;
for (my $name = $queue->first(); $name and @each < $take; $name = $queue->next()) {
    next unless $queue->lock($name);
    my $body = $type eq "normal" ? { $queue->get($name) }->{body} : $queue->get($name);
    $queue->remove($name);
    $seen{ substr($body, 0, 12) }++;
    my $now = time;
    push @each, $now - $last;
    $last = $now;
}
print ", ";
report("get", clock_gettime(CLOCK_PROCESS_CPUTIME_ID) - $cpu, $last - $began);
my $twice = grep { $_ > 1 } values %seen;
printf ', "lost": %d, "twice": %d}' . "\n", $take - keys(%seen), $twice;
