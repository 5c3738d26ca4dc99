"""Nested dictionaries of MIB mebibytes, which are read and changed here and there: dicts.py MIB."""
import random
import sys

# About 650 bytes each, in this and in later Pythons.
people = int(sys.argv[1]) * (1 << 20) // 650
people = {number: {"name": f"name {number}", "years": number % 97, "of": {"x": number * 3, "y": str(number)}}
          for number in range(people)}
chance = random.Random(1)
total = 0
for _ in range(20_000):
    one = people[chance.randrange(len(people))]
    one["of"]["x"] += one["years"]
    total = (total * 31 + one["of"]["x"] + len(one["name"])) % 1_000_000_007
for one in people.values():
    total = (total * 31 + one["of"]["x"] + len(one["of"]["y"])) % 1_000_000_007
print(len(people), total)
