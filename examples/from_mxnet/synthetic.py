"""Data for the examples of this directory, drawn from a seed: nothing is downloaded.

Pictures of digits, sentences of a small grammar, ratings of low rank, marked sentences, pictures with boxes: each is
as easy as it must be for an example to show within seconds that it learns.
"""

from __future__ import annotations

import numpy as np

# Digits of 3 × 5 dots, row after row.
_DOTS = """
111101101101111 010110010010111 111001111100111 111001111001111 101101111001001
111100111001111 111100111101111 111001010010010 111101111101111 111101111001111
""".split()
_GLYPHS = np.array([[int(dot) for dot in dots] for dots in _DOTS], np.float32).reshape(10, 5, 3)


def digits(count: int, size: int = 28, noise: float = 0.2, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Pictures (count, 1, size, size) in [0, 1] of digits near the middle, and the digits as float32 (count,)."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 10, count)
    scale = size // 7
    height, width, away = 5 * scale, 3 * scale, size // 14
    pictures = np.zeros((count, 1, size, size), np.float32)
    tops, lefts = (rng.integers((size - n) // 2 - away, (size - n) // 2 + away + 1, count) for n in (height, width))
    for picture, label, top, left in zip(pictures, labels, tops, lefts, strict=True):
        picture[0, top : top + height, left : left + width] = np.kron(_GLYPHS[label], np.ones((scale, scale)))
    pictures += rng.normal(0, noise, pictures.shape).astype(np.float32)
    return np.clip(pictures, 0, 1), labels.astype(np.float32)


def sentences(count: int, vocabulary: int = 50, longest: int = 20, seed: int = 0) -> list[list[int]]:
    """Lists of words 1 … vocabulary − 1 (0 is padding): nine words of ten follow from the word before."""
    rng = np.random.default_rng(seed)
    follower = np.random.default_rng(1).permutation(np.arange(1, vocabulary))
    made = []
    for length in rng.integers(5, longest + 1, count):
        words = [int(rng.integers(1, vocabulary))]
        while len(words) < length:
            given = rng.random() < 0.9
            words.append(int(follower[words[-1] - 1]) if given else int(rng.integers(1, vocabulary)))
        made.append(words)
    return made


def ratings(count: int, users: int = 60, items: int = 40, rank: int = 4, seed: int = 0) -> tuple[np.ndarray, ...]:
    """Users (count,), items (count,) and scores (count,): products of two tables' rows, and noise of 0.1."""
    rng = np.random.default_rng(seed)
    table = np.random.default_rng(1).normal(0, rank**-0.25, (users + items, rank))
    user, item = rng.integers(0, users, count), rng.integers(0, items, count)
    score = (table[user] * table[users + item]).sum(1) + rng.normal(0, 0.1, count)
    return user.astype(np.float32), item.astype(np.float32), score.astype(np.float32)


def opinions(count: int, words: int = 24, vocabulary: int = 200, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Sentences (count, words) of word numbers and their classes (count,): 1 where 7, 11, 13 follow one another."""
    rng = np.random.default_rng(seed)
    text = rng.integers(20, vocabulary, (count, words))
    labels = rng.integers(0, 2, count)
    places = rng.integers(0, words - 3, count)
    for sentence, label, place in zip(text, labels, places, strict=True):
        sentence[place : place + 3] = (7, 11, 13) if label else (13, 7, 11)
    return text.astype(np.float32), labels.astype(np.float32)


def boxes(count: int, size: int = 64, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Pictures (count, 3, size, size) with one or two coloured boxes, and labels (count, 2, 5).

    A label is (class, left, top, right, bottom), corners over the size; class 0 is red, 1 green, −1 means no box.
    """
    rng = np.random.default_rng(seed)
    pictures = rng.normal(0, 0.1, (count, 3, size, size)).astype(np.float32)
    labels = np.full((count, 2, 5), -1, np.float32)
    for picture, label in zip(pictures, labels, strict=True):
        for number in range(rng.integers(1, 3)):
            width, height = rng.integers(size // 4, size // 2, 2)
            left = rng.integers(0, size // 2 - width + 1) + number * size // 2  # the second one stands to the right
            top = rng.integers(0, size - height + 1)
            kind = rng.integers(0, 2)
            picture[kind, top : top + height, left : left + width] += 1
            label[number] = (kind, left / size, top / size, (left + width) / size, (top + height) / size)
    return pictures, labels
