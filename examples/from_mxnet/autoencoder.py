"""A stacked autoencoder: each pair of layers is trained alone first, then all together.

    python examples/from_mxnet/autoencoder.py --dims 196,64,16
"""

import argparse
import logging

import numpy as np
import synthetic

import arrayexec.compat.mxnet as mx


def stack(dims, first, last):
    """Layers first … last of the encoder, and back; reproduces its input."""
    net = mx.sym.Variable("data")
    for layer in range(first, last):
        net = mx.sym.FullyConnected(net, num_hidden=dims[layer + 1], name=f"encoder_{layer}")
        if layer < len(dims) - 2:
            net = mx.sym.Activation(net, act_type="relu")
    code = net
    for layer in reversed(range(first, last)):
        net = mx.sym.FullyConnected(net, num_hidden=dims[layer], name=f"decoder_{layer}")
        if layer > 0:
            net = mx.sym.Activation(net, act_type="relu")
    return mx.sym.LinearRegressionOutput(net, mx.sym.Variable("target"), name="copy"), code


def train(symbol, rows, params, epochs, batch_size):
    """Train `symbol` to give `rows` back; returns the parameters and the mean squared error."""
    batches = mx.io.NDArrayIter({"data": rows}, {"target": rows}, batch_size, shuffle=True, last_batch_handle="discard")
    module = mx.mod.Module(symbol, data_names=["data"], label_names=["target"])
    module.fit(
        batches,
        eval_metric="mse",
        optimizer="adam",
        optimizer_params={"learning_rate": 2e-3},
        initializer=mx.init.Xavier(),
        arg_params=params,
        allow_missing=True,
        num_epoch=epochs,
    )
    return module.get_params()[0], dict(module.score(batches, "mse"))["mse"]


def encode(code, rows, params, batch_size):
    """What the encoder makes of `rows`."""
    module = mx.mod.Module(code, label_names=None)
    batches = mx.io.NDArrayIter({"data": rows}, batch_size=batch_size)
    module.bind(batches.provide_data, for_training=False)
    module.set_params(params, {}, allow_missing=False, allow_extra=True)
    return module.predict(batches).asnumpy()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dims", default="196,64,16", help="pixels, hidden units of each layer")
    parser.add_argument("--num-epochs", type=int, default=8, help="for every stage")
    parser.add_argument("--batch-size", type=int, default=50)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    mx.random.seed(1)

    dims = [int(dim) for dim in args.dims.split(",")]
    images, _ = synthetic.digits(2000, size=int(np.sqrt(dims[0])), noise=0.05)
    pixels = images.reshape(len(images), -1)
    params, rows = {}, pixels
    for layer in range(len(dims) - 1):
        symbol, code = stack(dims, layer, layer + 1)
        trained, error = train(symbol, rows, None, args.num_epochs, args.batch_size)
        logging.info("layer %d alone: mse %.4f", layer, error)
        params.update(trained)
        rows = encode(code, rows, trained, args.batch_size)
        if layer < len(dims) - 2:
            rows = np.maximum(rows, 0)
    symbol, _ = stack(dims, 0, len(dims) - 1)
    _, error = train(symbol, pixels, params, args.num_epochs, args.batch_size)
    print(f"mse={error:.4f} variance={pixels.var(axis=0).mean():.4f}")


if __name__ == "__main__":
    main()
