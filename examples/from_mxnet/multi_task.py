"""One net, two answers: which digit it is, whether it is odd. A group of heads, a metric and an iterator of one's own.

    python examples/from_mxnet/multi_task.py
"""

import argparse
import logging

import numpy as np
import synthetic

import arrayexec.compat.mxnet as mx


def network():
    net = mx.sym.Flatten(mx.sym.Variable("data"))
    net = mx.sym.FullyConnected(net, num_hidden=128, name="fc1")
    net = mx.sym.Activation(net, act_type="relu", name="relu1")
    digit = mx.sym.FullyConnected(net, num_hidden=10, name="fc_digit")
    odd = mx.sym.FullyConnected(net, num_hidden=2, name="fc_odd")
    return mx.sym.Group([mx.sym.SoftmaxOutput(digit, name="digit"), mx.sym.SoftmaxOutput(odd, name="odd")])


class TwoLabels(mx.io.DataIter):
    """Gives every label a second time, as odd or even."""

    def __init__(self, source):
        super().__init__()
        self.source = source
        self.batch_size = source.batch_size

    @property
    def provide_data(self):
        return self.source.provide_data

    @property
    def provide_label(self):
        described = self.source.provide_label[0]
        return [mx.io.DataDesc("digit_label", described.shape), mx.io.DataDesc("odd_label", described.shape)]

    def reset(self):
        self.source.reset()

    def next(self):
        batch = self.source.next()
        digit = batch.label[0]
        odd = mx.nd.array(digit.asnumpy() % 2)
        return mx.io.DataBatch(data=batch.data, label=[digit, odd], pad=batch.pad, index=batch.index)


class Accuracies(mx.metric.EvalMetric):
    """Accuracy of each head, one after the other."""

    def __init__(self, heads):
        self.heads = heads
        super().__init__("accuracies")

    def reset(self):
        self.right, self.seen = [0] * len(self.heads), [0] * len(self.heads)

    def update(self, labels, preds):
        for number in range(len(self.heads)):
            guess = np.argmax(preds[number].asnumpy(), axis=1)
            self.right[number] += int((guess == labels[number].asnumpy()).sum())
            self.seen[number] += len(guess)

    def get(self):
        shares = [right / max(seen, 1) for right, seen in zip(self.right, self.seen, strict=True)]
        return list(self.heads), shares


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=50)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    mx.random.seed(1)

    train = TwoLabels(mx.io.NDArrayIter(*synthetic.digits(2000, seed=0), args.batch_size, shuffle=True))
    test = TwoLabels(mx.io.NDArrayIter(*synthetic.digits(500, seed=1), args.batch_size))
    module = mx.mod.Module(network(), label_names=("digit_label", "odd_label"), context=mx.cpu())
    module.fit(
        train,
        eval_data=test,
        eval_metric=Accuracies(["digit", "odd"]),
        optimizer="sgd",
        optimizer_params=(("learning_rate", 0.1), ("momentum", 0.9), ("wd", 1e-5)),
        initializer=mx.init.Xavier(),
        num_epoch=args.num_epochs,
        batch_end_callback=mx.callback.Speedometer(args.batch_size, 20),
    )
    found = dict(module.score(test, Accuracies(["digit", "odd"])))
    print(f"digit={found['digit']:.4f} odd={found['odd']:.4f}")


if __name__ == "__main__":
    main()
