"""A loss head written in NumPy: CustomOp and CustomOpProp.

    python examples/from_mxnet/custom_softmax.py
"""

import argparse
import logging

import numpy as np
import synthetic

import arrayexec.compat.mxnet as mx


class Softmax(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        scores = in_data[0].asnumpy()
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        self.assign(out_data[0], req[0], mx.nd.array(powers / powers.sum(axis=1, keepdims=True)))

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        labels = in_data[1].asnumpy().astype(int)
        slopes = out_data[0].asnumpy().copy()
        slopes[np.arange(len(labels)), labels] -= 1
        self.assign(in_grad[0], req[0], mx.nd.array(slopes))


@mx.operator.register("example_softmax")
class SoftmaxProp(mx.operator.CustomOpProp):
    def __init__(self):
        super().__init__(need_top_grad=False)

    def list_arguments(self):
        return ["data", "label"]

    def list_outputs(self):
        return ["output"]

    def infer_shape(self, in_shape):
        return [in_shape[0], (in_shape[0][0],)], [in_shape[0]], []

    def infer_type(self, in_type):
        return [in_type[0]] * 2, [in_type[0]], []

    def create_operator(self, ctx, shapes, dtypes):
        return Softmax()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=50)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    mx.random.seed(1)

    net = mx.sym.Flatten(mx.sym.Variable("data"))
    net = mx.sym.FullyConnected(net, num_hidden=128, name="fc1")
    net = mx.sym.Activation(net, act_type="relu", name="relu1")
    net = mx.sym.FullyConnected(net, num_hidden=10, name="fc2")
    net = mx.sym.Custom(net, op_type="example_softmax", name="softmax")

    train = mx.io.NDArrayIter(*synthetic.digits(2000, seed=0), args.batch_size, shuffle=True)
    test = mx.io.NDArrayIter(*synthetic.digits(500, seed=1), args.batch_size)
    model = mx.model.FeedForward(
        symbol=net,
        ctx=mx.cpu(),
        num_epoch=args.num_epochs,
        learning_rate=0.1,
        momentum=0.9,
        wd=1e-5,
        initializer=mx.init.Xavier(),
    )
    model.fit(X=train, eval_data=test, batch_end_callback=mx.callback.Speedometer(args.batch_size, 20))
    print(f"accuracy={model.score(test):.4f}")


if __name__ == "__main__":
    main()
