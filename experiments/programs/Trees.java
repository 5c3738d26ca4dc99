// Maps, strings and arrays of MIB mebibytes, with rubbish beside them: Trees MIB
import java.util.HashMap;
import java.util.TreeMap;

public class Trees {
  public static void main(String[] words) {
    int count = Integer.parseInt(words[0]) * (1 << 20) / 300;
    HashMap<Integer, TreeMap<String, long[]>> all = new HashMap<>();
    for (int i = 0; i < count; ++i) {
      all.computeIfAbsent(i % 1000, key -> new TreeMap<>()).put("key " + i, new long[] {i, i * 3L, i % 97});
    }
    long sum = 0;
    long at = 1;
    for (int i = 0; i < 20000; ++i) {
      at = at * 48271 % 2147483647;
      int number = (int) (at % count);
      long[] one = all.get(number % 1000).get("key " + number);
      one[0] += one[2];
      sum = (sum * 31 + one[0]) % 1000000007;
    }
    for (int i = 0; i < 1000; ++i) {
      for (long[] one : all.get(i).values()) sum = (sum * 31 + one[0] + one[1]) % 1000000007;
    }
    System.out.println(count + " " + sum);
  }
}
