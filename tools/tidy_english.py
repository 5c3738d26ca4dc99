#!/usr/bin/env python3
"""usage: tools/tidy_english.py FILE...

Prints each of four habits that make comments and documents hard to read; tools/tidy.py counts them. It is a ruler, no
judge: a sentence without any can still be bad.

  what    a clause "what is/was/has/comes ..." in place of a noun: write "the stored pages", not "what is stored"
  nobody  "nobody", "whoever", "who is ..." in place of a role: a client, an owner, an operator
  opener  a sentence that opens with "Of ...:", "To ...:", "In ...:" and has no verb there
  person  pages, servers and copies that come, go, leave, stay, have had or are told
"""

import re
import sys

from tidy_source import Source

DOCUMENT_WORDS = 2000  # a document may have one of each habit for so many words, and one in any case
COMMENT_WORDS = 1000  # the comments of a file have fewer than one habit for so many words

HABITS = {
    "what": re.compile(
        r"\bwhat (?:is|was|are|were|has|had|have|comes?|came|goes|went|lies|lay|stays?|stood|stands|remains?|there|it"
        r"|they|he|she|we|you|one|others?|somebody|someone|nobody|the|a|an|this|that|these|those|each|every)\b",
        re.I,
    ),
    "nobody": re.compile(
        r"\b(?:nobody|whoever|somebody|someone|anybody|anyone|everybody|those who|who (?:is|are|was|were|has|have|had"
        r"|can|may|must|will|does?|writes?|reads?|waits?|wants?|comes?|goes?))\b",
        re.I,
    ),
    "opener": re.compile(
        r"(?:^(?:[-*] |\d+\. |# )?|[.;:!?)] )(?:Of|To|In|With|For|By|At) [^.:;\n]{1,60}:(?= |$)",
        re.M,
    ),
    "person": re.compile(
        r"\b(?:pages?|servers?|memory|copies|copy|spans?|versions?|data|blocks?|regions?) (?:that )?"
        r"(?:comes?|came|goes?|went|leaves?|left|stays?|stayed|(?:has|have) had|had been|(?:is|are|was|were) told)\b",
        re.I,
    ),
}


def count(text):
    """{habit: occurrences} of plain text with a paragraph on each line."""
    return {habit: len(pattern.findall(text)) for habit, pattern in HABITS.items()}


def text_of(path, text):
    return text_of_document(text) if path.endswith(".md") else text_of_comments(Source.of(path, text).comments)


def text_of_comments(comments):
    """The text of (line, comment), a line for each paragraph."""
    paragraphs = []
    end = -1
    for line, comment in comments:
        if comment.startswith("#!") or comment.endswith("=*/"):
            continue  # an interpreter, the name of a parameter
        stripped = re.sub(r"^\s*(?:/\*+|\*+/?|//+|#+|!+)? ?|\s*\*/$", "", comment, flags=re.M)
        first, *others = [" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", stripped)]
        if line == end + 1 and first and paragraphs[-1]:
            paragraphs[-1] += " " + first
        else:
            paragraphs.append(first)
        paragraphs.extend(others)
        end = line + comment.count("\n")
    return "\n".join(paragraph for paragraph in paragraphs if paragraph)


def text_of_document(text):
    """The prose of a Markdown document, a line for each paragraph; code is left out."""
    text = re.sub(r"^```.*?^```|^(?: {4}|\t)[^\n]*$|`[^`]*`", " ", text, flags=re.S | re.M)
    text = re.sub(r"\n(?=\s*(?:[-*] |\d+\. |#|\||$))", "\n\n", text)
    return "\n".join(" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", text))


def allowed_in_document(text):
    """Occurrences of each habit that a document may have."""
    return max(1, len(text.split()) // DOCUMENT_WORDS)


def allowed_in_comments(text):
    """Occurrences of all habits that the comments of a file may have."""
    return max(0, len(text.split()) - 1) // COMMENT_WORDS


def main():
    if sys.argv[1:] in (["-h"], ["--help"]):
        print(__doc__.strip())
        return
    if len(sys.argv) < 2:
        sys.exit(__doc__.strip())
    for path in sys.argv[1:]:
        with open(path, encoding="utf-8") as file:
            text = text_of(path, file.read())
        for habit, pattern in HABITS.items():
            for match in pattern.finditer(text):
                around = text[max(0, match.start() - 40):match.end() + 40].replace("\n", " ")
                print(f"{path}: {habit}: ... {around} ...")


if __name__ == "__main__":
    main()
