"""A multi-class support vector machine on top of a small net: SVMOutput instead of softmax.

    python examples/from_mxnet/svm_mnist.py --linear
"""

import argparse
import logging

import synthetic

import arrayexec.compat.mxnet as mx


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--linear", action="store_true", help="hinge loss instead of its square")
    parser.add_argument("--num-epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=50)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    mx.random.seed(1)

    net = mx.sym.Flatten(mx.sym.Variable("data"))
    for number in (1, 2):
        net = mx.sym.FullyConnected(net, num_hidden=128, name=f"fc{number}")
        net = mx.sym.Activation(net, act_type="relu", name=f"relu{number}")
    net = mx.sym.FullyConnected(net, num_hidden=10, name="fc3")
    net = mx.sym.SVMOutput(net, use_linear=args.linear, regularization_coefficient=0.5, name="svm")

    train = mx.io.NDArrayIter(*synthetic.digits(2000, seed=0), args.batch_size, shuffle=True, label_name="svm_label")
    test = mx.io.NDArrayIter(*synthetic.digits(500, seed=1), args.batch_size, label_name="svm_label")
    module = mx.mod.Module(net, context=mx.cpu(), label_names=["svm_label"])
    module.fit(
        train,
        eval_data=test,
        optimizer="sgd",
        optimizer_params={"learning_rate": 0.05, "momentum": 0.9, "wd": 1e-5},
        initializer=mx.init.Xavier(magnitude=2.24),
        num_epoch=args.num_epochs,
    )
    print("accuracy={:.4f}".format(dict(module.score(test, "acc"))["accuracy"]))


if __name__ == "__main__":
    main()
