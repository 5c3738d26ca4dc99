# A hash of hashes of MIB mebibytes: hashes.rb MIB
count = ARGV[0].to_i * 1048576 / 330
all = {}
count.times { |i| all["key #{i}"] = {a: i, b: [i, i * 3, "s#{i}"]} }
sum = 0
20000.times do |i|
  one = all["key #{i * 48271 % count}"]
  one[:a] += one[:b][1]
  sum = (sum * 31 + one[:a]) % 1000000007
end
all.each_value { |one| sum = (sum * 31 + one[:a] + one[:b][2].length) % 1000000007 }
puts count, sum
