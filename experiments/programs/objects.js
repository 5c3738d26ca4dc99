// A map of objects of MIB mebibytes: objects.js MIB
const count = Math.floor(Number(process.argv[2]) * 1048576 / 270);
const all = new Map();
for (let i = 0; i < count; ++i) all.set("key " + i, {a: i, b: [i, i * 3, "s" + i]});
let sum = 0;
for (let i = 0; i < 20000; ++i) {
  const one = all.get("key " + (i * 48271 % count));
  one.a += one.b[1];
  sum = (sum * 31 + one.a) % 1000000007;
}
for (const one of all.values()) sum = (sum * 31 + one.a + one.b[2].length) % 1000000007;
console.log(count, sum);
