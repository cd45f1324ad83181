"""Names of the columns that `mmdata.clean.measure.measure` fills: what is counted, and in which unit.

Columns 0-19 are numbers of characters by class (mmdata.clean.tables). Plain integers, because compiled kernels read
them as constants.
"""

from __future__ import annotations

from mmdata.clean.tables import CLASSES

(
    BYTES,  # of UTF-8
    CHARS,  # code points
    TRADITIONAL,  # Han characters found in Big5 only
    SIMPLIFIED,  # Han characters found in GB 2312 only
    GBK_TRACES,  # Han characters that UTF-8 Chinese read as GBK is full of
    ZH_STOPS,  # Chinese function characters
    FTFY,  # places that could match ftfy's badness expression
    LONGEST_RUN,  # longest run of one character that is not white space
    NOT_NFC,  # 1 where normalising might change something
    LIGATURES,  # 1 where a Latin ligature occurs
    WORDS,  # Han and kana characters and runs of other letters or digits
    WORD_CHARS,  # characters in words
    LATIN_WORDS,  # words that are not single Han or kana characters
    LATIN_WORD_CHARS,
    EN_STOPS,  # English stop words, occurrences
    LONGEST_WORD,
    LONG_WORD_CHARS,  # characters in words longer than 40
    CONSONANT_WORDS,  # ASCII words of four letters or more without a vowel
    ASCII_WORDS,  # ASCII words of four letters or more
    DIGIT_WORDS,  # words of digits only
    UNIQUE_WORDS,  # distinct word hashes, case folded for ASCII
    TOP_WORD_CHARS,  # characters taken by the most frequent word
    ENTROPY,  # unigram entropy in millionths of a bit
    DUPLICATE_GRAM_CHARS,  # word characters covered by 10-word sequences seen before in the document
    LINES,  # lines with a visible character
    LINE_CHARS,  # characters in those lines, without white space at both ends
    SHORT_LINES,  # lines of at most 12 Han (or 30 other) characters
    BULLET_LINES,
    ELLIPSIS_LINES,
    TERMINAL_LINES,  # lines that end in a terminal mark
    DUPLICATE_LINES,  # lines seen before in the document
    DUPLICATE_LINE_CHARS,
    PARAGRAPHS,  # blocks between blank lines
    DUPLICATE_PARAGRAPHS,
    DUPLICATE_PARAGRAPH_CHARS,
    REPEATED_RUN,  # longest run of one repeated line with at least two letters
    BLANK_RUN,  # longest run of blank lines
    WIDE_LINES,  # lines without a Han character that hold fullwidth punctuation or U+3000
    BOILERPLATE_FIRST,  # number from 1 of the first visible line that begins like a boilerplate line, 0: none
    BOILERPLATE_LAST,  # and of the last one
    SPACE_RUNS,  # runs of three spaces or more that could stand between words of a prose line
    HASHES,  # number signs
    ELLIPSES,  # "..." and U+2026
    CURLY,  # {
    RETURNS,  # \r, U+2028, U+2029, U+0085
    ODD_SPACES,  # U+00A0, U+2000-200A, U+202F, U+205F, U+1680
    REFERENCES,  # character references
    TAGS,  # < before a letter, / or !
    OFFICE,  # <o:
    ESCAPES,  # terminal escape sequences
    PII,  # bits of mmdata.clean.pii_kernel: kinds of personal data that could be there
    TAILS,  # line ends after a tab or three spaces
    C0,  # control characters below U+0020, and U+007F
) = range(CLASSES, CLASSES + 53)

COLUMNS = CLASSES + 53
