#!/usr/bin/env python3
"""Tests of the rules of tools/tidy.py that measure. tools/tidy.py runs them too."""

import unittest

import tidy
import tidy_classes
import tidy_english
import tidy_ratchet
import tidy_sleeps
from tidy_source import Source, find_functions

HEADER = """
namespace nram {
class Outer final : public Base<int> {
 public:
  explicit Outer(int a) : a_(a) {}
  ~Outer() override;
  Outer(const Outer&) = delete;
  Outer& operator=(const Outer&) = default;
  bool operator==(const Outer& other) const;
  friend void Swap(Outer* a, Outer* b);
  int a() const { return a_; }            // an accessor
  void First();
  absl::StatusOr<std::function<void(int)>> Second(int x = 3) const ABSL_LOCKS_EXCLUDED(mu_);
  virtual void Third() = 0;
  template <typename T>
  T Fourth(const std::vector<T>& all) {
    return all.empty() ? T{} : all.front();
  }
  struct Inner {
    void Fifth();
    int x = Size(1);
  };

 private:
  static constexpr int kMax = Max(1, 2);
  std::function<void(int)> done_;
  void (*call_)(int) = nullptr;
  mutable Mutex mu_;
  int a_ ABSL_GUARDED_BY(mu_) = 0;
  std::array<int, 3> all_{Size(1), 2, 3};
  ABSL_GUARDED_BY(mu_) int b_;
};
}  // namespace nram
"""


class Classes(unittest.TestCase):
    def test_methods(self):
        source = Source.of("a/outer.h", HEADER)
        self.assertEqual(tidy_classes.count_methods(source.code), {"Outer": 4, "Outer::Inner": 1})

    def test_functions_are_no_methods(self):
        code = Source.of("a.cc", "namespace {\nint F() {\n  return 1;\n}\nint G();\n}\nenum class E { kA };\n").code
        self.assertEqual(tidy_classes.count_methods(code), {})
        self.assertEqual(find_functions(code), [(2, 3, "F")])

    def test_files(self):
        sources = [Source.of("a/outer.h", HEADER)] + [
            Source.of(f"a/{name}.cc", f'#include "a/outer.h"\nvoid Outer::{method}() {{\n  Call();\n}}\n')
            for name, method in (("outer", "First"), ("more", "Second"), ("inner", "Inner::Fifth"))
        ]
        sources.append(Source.of("b/other.cc", '#include "b/outer.h"\nvoid Outer::First() {}\n'))
        sources.append(Source.of("a/user.cc", '#include "a/outer.h"\nvoid User::Use() { Outer::Make(); }\n'))
        self.assertEqual(tidy_classes.measure(sources)[1], {"a/outer.h Outer": 3})


class Sleeps(unittest.TestCase):
    def test_calls(self):
        code = """
          std::this_thread::sleep_for(pause);
          SleepMs(1);
          poll(nullptr, 0, 5);
          poll(fds, 1, 5); SleepForEvent(); AwaitSleep(2);  // usleep(1)
          PollUntil(deadline_ns, 1, done);
          Log("usleep(1)");
        """
        self.assertEqual(tidy_sleeps.count_sleeps(Source.of("a.cc", code)), 4)
        self.assertEqual(tidy_sleeps.count_sleeps(Source.of("base/poll_until.h", code)), 0)

    def find(self, **texts):
        sources = [Source.of(name.replace("_", "."), text) for name, text in texts.items()]
        return tidy_sleeps.find_unsignalled(sources)

    def test_local_that_no_thread_signals(self):
        self.assertEqual(self.find(a_cc="\nCondVar nothing;\nnothing.WaitUntil(&mu, 1);\n"), [("a.cc", 2, "nothing")])

    def test_member(self):
        header = "class A {\n  std::condition_variable changed_;\n};\n"
        waits = '#include "a.h"\nvoid A::Wait() { changed_.wait_for(lock, pause); }\n'
        signals = '#include "a.h"\nvoid A::Set() { a->changed_.notify_all(); }\n'
        elsewhere = "void B::Set() { changed_.notify_all(); }\n"
        self.assertEqual(self.find(a_h=header, a_cc=waits, b_cc=signals), [])
        self.assertEqual(self.find(a_h=header, a_cc=waits, b_cc=elsewhere), [("a.h", 2, "changed_")])

    def test_address_is_given_away(self):
        self.assertEqual(self.find(a_cc="CondVar ended;\nStart(&ended);\nended.WaitUntil(&mu, 1);\n"), [])


class Documents(unittest.TestCase):
    def test_anchors(self):
        text = "# The `nram run` door\n```\n# no heading\n```\n## What, [it](x.md) costs\n"
        self.assertEqual(tidy.anchors_of(text), {"the-nram-run-door", "what-it-costs"})


class Variables(unittest.TestCase):
    def problems_of(self, table):
        code = 'getenv("NRAM_A"); FindProgram("x", "NRAM_BC"); getenv("NRAM_D_FOR_TEST"); getenv("NRAM_SELF");'
        tidy.problems.clear()
        tidy.check_variables([Source.of("base/a.cc", code), Source.of("tests/a.cc", 'getenv("NRAM_E")')], table)
        found = list(tidy.problems)
        tidy.problems.clear()
        return found

    def test_the_same(self):
        self.assertEqual(self.problems_of("| `NRAM_A`, `NRAM_BC` | text |\n"), [])

    def test_a_row_lacks(self):
        found = self.problems_of("| `NRAM_A` | NRAM_BC `NRAM_BC` |\n")
        self.assertEqual(len(found), 1)
        self.assertIn("base/a.cc:1: NRAM_BC has no row", found[0])

    def test_a_row_too_many(self):
        found = self.problems_of("| `NRAM_A` | |\n| `NRAM_BC` | |\n| `NRAM_F` | |\n")
        self.assertEqual(len(found), 1)
        self.assertIn("NRAM_F has a row", found[0])


class English(unittest.TestCase):
    def count(self, text):
        return {habit: number for habit, number in tidy_english.count(text).items() if number}

    def test_habits(self):
        self.assertEqual(self.count("What is there. Sends what they have and what the server needs."), {"what": 3})
        self.assertEqual(self.count("Nobody waits. Whoever comes, who has it."), {"nobody": 3})
        self.assertEqual(self.count("Of the first: none.\nIn a pool: it waits. To end it: kill."), {"opener": 3})
        self.assertEqual(self.count("Pages that come, a server has had it; data is told."), {"person": 3})
        self.assertEqual(self.count("The stored pages. A client waits. The server evicts copies: a few."), {})

    def test_comments(self):
        text = "int a;  // one\n/* Two\n * lines. */\n\n// Three\n//\n// four\nF(/*name=*/1);\n"
        source = Source.of("a.cc", text + 'Log("// no comment");\n')
        self.assertEqual(tidy_english.text_of_comments(source.comments).split("\n"),
                         ["one Two lines.", "Three", "four"])
        source = Source.of("a.py", "#!/usr/bin/python3\n# One\n# two.\nx = '# three'  # four\n")
        self.assertEqual(tidy_english.text_of_comments(source.comments).split(), ["One", "two.", "four"])
        source = Source.of("a.f90", "! One\ncall f('! two')  ! three\n")
        self.assertEqual(tidy_english.text_of_comments(source.comments).split(), ["One", "three"])

    def test_documents(self):
        text = "# Head\n\nOne\n`two` three.\n- four\n  five\n\n```\nsix\n```\n\n    seven\n"
        lines = [line for line in tidy_english.text_of_document(text).split("\n") if line]
        self.assertEqual(lines, ["# Head", "One three.", "- four five"])

    def test_allowed(self):
        self.assertEqual([tidy_english.allowed_in_document("word " * n) for n in (10, 2000, 4000)], [1, 1, 2])
        self.assertEqual([tidy_english.allowed_in_comments("word " * n) for n in (0, 1000, 1001, 2001)], [0, 0, 1, 2])


class Ratchet(unittest.TestCase):
    def compare(self, old, **numbers):
        measures = [
            tidy_ratchet.Measure("rule", f"{name}/x.cc", "", number, 2, "things", "do it")
            for name, number in numbers.items()
        ]
        problems, fitting = tidy_ratchet.compare({"rule": old}, measures)
        return problems, fitting["rule"]

    def test_new_one_above_the_limit(self):
        self.assertEqual(self.compare({}, a=3), (["a/x.cc: things: 3, at most 2; do it"], {}))
        self.assertEqual(self.compare({}, a=2), ([], {}))

    def test_one_that_grows(self):
        problems, fitting = self.compare({"a/x.cc": 5}, a=6)
        self.assertEqual(problems, ["a/x.cc: things: 6, tools/tidy.json allows 5; do it"])
        self.assertEqual(fitting, {"a/x.cc": 5})

    def test_one_that_shrinks(self):
        self.assertEqual(self.compare({"a/x.cc": 5}, a=4), ([], {"a/x.cc": 4}))
        self.assertEqual(self.compare({"a/x.cc": 5}, a=1), ([], {}))
        self.assertEqual(tidy_ratchet.describe({"rule": {"a/x.cc": 5}}, {"rule": {"a/x.cc": 4}}),
                         ["rule: a/x.cc: lower the entry from 5 to 4"])

    def test_one_that_moves(self):
        self.assertEqual(self.compare({"a/x.cc": 5}, b=5), ([], {"b/x.cc": 5}))
        self.assertEqual(self.compare({"a/x.cc": 5}, b=6)[1], {"b/x.cc": 5})
        problems, fitting = self.compare({"a/x.cc": 5}, b=5, c=5)
        self.assertEqual((len(problems), fitting), (2, {}))


if __name__ == "__main__":
    unittest.main()
