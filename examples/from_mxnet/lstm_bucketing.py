"""A language model on sentences of many lengths: LSTM cells, one bucket a length, BucketingModule.

    python examples/from_mxnet/lstm_bucketing.py --num-layers 2
"""

import argparse
import logging

import numpy as np
import synthetic

import arrayexec.compat.mxnet as mx

BUCKETS, PADDING = [8, 12, 16, 20], 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-layers", type=int, default=1)
    parser.add_argument("--num-hidden", type=int, default=48)
    parser.add_argument("--num-embed", type=int, default=32)
    parser.add_argument("--num-epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=32)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    mx.random.seed(1)
    np.random.seed(1)

    vocabulary = 50
    train, test = (
        mx.rnn.BucketSentenceIter(
            synthetic.sentences(count, vocabulary, seed=seed), args.batch_size, buckets=BUCKETS, invalid_label=PADDING
        )
        for count, seed in ((1500, 0), (300, 1))
    )
    stack = mx.rnn.SequentialRNNCell()
    for layer in range(args.num_layers):
        stack.add(mx.rnn.LSTMCell(num_hidden=args.num_hidden, prefix=f"lstm_l{layer}_"))

    def sym_gen(length):
        data, label = mx.sym.Variable("data"), mx.sym.Variable("softmax_label")
        embedded = mx.sym.Embedding(data, input_dim=vocabulary, output_dim=args.num_embed, name="embed")
        stack.reset()
        outputs, _ = stack.unroll(length, inputs=embedded, merge_outputs=True)
        scores = mx.sym.Reshape(outputs, shape=(-1, args.num_hidden))
        scores = mx.sym.FullyConnected(scores, num_hidden=vocabulary, name="pred")
        label = mx.sym.Reshape(label, shape=(-1,))
        return mx.sym.SoftmaxOutput(scores, label, name="softmax"), ("data",), ("softmax_label",)

    model = mx.mod.BucketingModule(sym_gen, default_bucket_key=train.default_bucket_key, context=mx.cpu())
    model.fit(
        train_data=train,
        eval_data=test,
        eval_metric=mx.metric.Perplexity(PADDING),
        optimizer="adam",
        optimizer_params={"learning_rate": 0.01},
        initializer=mx.init.Xavier(factor_type="in", magnitude=2.34),
        num_epoch=args.num_epochs,
        batch_end_callback=mx.callback.Speedometer(args.batch_size, 20, auto_reset=False),
    )
    print("perplexity={:.3f}".format(dict(model.score(test, mx.metric.Perplexity(PADDING)))["perplexity"]))


if __name__ == "__main__":
    main()
