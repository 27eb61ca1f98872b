"""Causal attention, block by block over the keys, with an online softmax.

`spatial(8, 4) * repeat(2, k)` says: 4 neighbouring lanes share 2 queries, with k keys or k features
each; so the scores of a query and its result are in the registers of the same lanes.
"""

from __future__ import annotations

import numpy as np

import taskc as tc
from taskc import f32, repeat, spatial


def make_attention(
    heads: int,
    length: int,
    features: int,
    *,
    workers: tuple[int, int] = (8, 4),
    queries: int = 2,
    bk: int = 16,
    stages: int = 2,
) -> tc.KernelDefinition:
    over_keys = spatial(*workers) * repeat(queries, bk // workers[1])
    over_features = spatial(*workers) * repeat(queries, tc.cdiv(features, workers[1]))
    by_row = over_keys.project((0,))
    bq, width = over_features.shape
    scale = features**-0.5

    @tc.kernel(workers=over_keys.workers)
    def attention(
        q: f32[heads, length, features],
        k: f32[heads, length, features],
        v: f32[heads, length, features],
        y: tc.out[f32[heads, length, features]],
    ) -> None:
        for head, row in tc.tiles((heads, length), by=(1, bq)):
            query = tc.load(q[head, row : row + bq, 0:features])
            result = tc.tile(f32, over_features, 0)
            largest = tc.tile(f32, by_row, -tc.inf)
            total = tc.tile(f32, by_row, 0)
            for p in tc.pipeline(min(row + bq, length), by=bk, stages=stages):
                keys = tc.load(k[head, p : p + bk, 0:features])
                values = tc.load(v[head, p : p + bk, 0:width])

                scores = tc.tile(f32, over_keys, 0)
                tc.mma(scores, query, keys.T)
                for i, j in over_keys:
                    seen = p + j <= row + i  # a query sees no later key
                    scores[i, j] = scores[i, j] * scale if seen else -tc.inf

                # A larger score than all before shrinks what has been summed up with the old one.
                highest = tc.reduce(scores, 1, "max")
                shrink = tc.tile(f32, by_row)
                for i in by_row:
                    highest[i] = max(highest[i], largest[i])
                    shrink[i] = tc.exp(largest[i] - highest[i])
                    largest[i] = highest[i]
                for i, j in over_keys:
                    scores[i, j] = tc.exp(scores[i, j] - largest[i])
                added = tc.reduce(scores, 1, "+")
                for i in by_row:
                    total[i] = total[i] * shrink[i] + added[i]
                for i, d in over_features:
                    result[i, d] *= shrink[i]
                tc.mma(result, scores, values)
            for i, d in over_features:
                result[i, d] /= total[i]
            tc.store(y[head, row : row + bq, 0:width], result)

    return attention


attention = make_attention(2, 50, 12)


def main() -> None:
    q, k, v = (x.astype(np.float64) for x in attention.example())
    scores = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1])
    scores[:, np.triu(np.ones(scores.shape[1:], bool), 1)] = -np.inf
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    exact = powers / powers.sum(axis=-1, keepdims=True) @ v
    error = np.abs(attention(*attention.example()) - exact).max()
    print(f"attention: largest error {error:.1e}")


if __name__ == "__main__":
    main()
