# A hash of arrays of MIB mebibytes: hash.pl MIB
use strict;
use warnings;

my $count = int($ARGV[0] * 1048576 / 500);
my %lines;
# A growing hash is spread anew, here and there, each time that it doubles.
keys(%lines) = $count;
for my $i (0 .. $count - 1) {
  $lines{"key $i"} = [$i, "some text for $i", $i % 97];
}
my ($at, $sum) = (1, 0);
for (1 .. 5000) {
  $at = ($at * 48271) % 2147483647;
  my $one = $lines{"key " . ($at % $count)};
  $one->[0] += $one->[2];
  $sum = ($sum * 31 + $one->[0] + length($one->[1])) % 1000000007;
}
$sum = ($sum * 31 + $lines{"key " . 20 * $_}[0]) % 1000000007 for 0 .. $count / 20 - 1;
print "$count $sum\n";
