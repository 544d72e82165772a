"""A generator and a discriminator that train each other: two modules, gradients passed on by hand.

    python examples/from_mxnet/dcgan.py --num-epochs 10
"""

import argparse
import logging

import numpy as np
import synthetic

import arrayexec.compat.mxnet as mx

SIZE, CODE = 16, 16


def generator(filters):
    """(n, CODE, 1, 1) -> (n, 1, SIZE, SIZE) in [-1, 1]."""
    net = mx.sym.Variable("rand")
    shapes = ((filters * 2, (4, 4), (1, 1), (0, 0)), (filters, (4, 4), (2, 2), (1, 1)))
    for number, (channels, kernel, stride, pad) in enumerate(shapes):
        net = mx.sym.Deconvolution(
            net, kernel=kernel, stride=stride, pad=pad, num_filter=channels, no_bias=True, name=f"g{number}"
        )
        net = mx.sym.BatchNorm(net, fix_gamma=True, eps=1e-5, name=f"gbn{number}")
        net = mx.sym.Activation(net, act_type="relu")
    net = mx.sym.Deconvolution(net, kernel=(4, 4), stride=(2, 2), pad=(1, 1), num_filter=1, no_bias=True, name="g2")
    return mx.sym.Activation(net, act_type="tanh", name="gact")


def discriminator(filters):
    """(n, 1, SIZE, SIZE) -> the chance (n, 1) of being a real picture."""
    net = mx.sym.Variable("data")
    for number, channels in enumerate((filters, filters * 2)):
        net = mx.sym.Convolution(
            net, kernel=(4, 4), stride=(2, 2), pad=(1, 1), num_filter=channels, no_bias=True, name=f"d{number}"
        )
        if number:
            net = mx.sym.BatchNorm(net, fix_gamma=True, eps=1e-5, name=f"dbn{number}")
        net = mx.sym.LeakyReLU(net, act_type="leaky", slope=0.2)
    net = mx.sym.FullyConnected(mx.sym.Flatten(net), num_hidden=1, name="d2")
    return mx.sym.LogisticRegressionOutput(net, mx.sym.Variable("label"), name="dloss")


def module(symbol, data, label=None, **options):
    made = mx.mod.Module(
        symbol, data_names=[data[0]], label_names=[label[0]] if label else None, context=mx.cpu(), logger=logging
    )
    made.bind(data_shapes=[data], label_shapes=[label] if label else None, **options)
    made.init_params(initializer=mx.init.Normal(0.02))
    made.init_optimizer(optimizer="adam", optimizer_params={"learning_rate": 1e-3, "beta1": 0.5, "wd": 0.0})
    return made


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=50)
    parser.add_argument("--filters", type=int, default=16)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    mx.random.seed(1)

    n = args.batch_size
    pictures, _ = synthetic.digits(2000, size=SIZE, noise=0.05)
    train = mx.io.NDArrayIter(pictures * 2 - 1, batch_size=n, shuffle=True)
    gen = module(generator(args.filters), ("rand", (n, CODE, 1, 1)))
    dis = module(discriminator(args.filters), ("data", (n, 1, SIZE, SIZE)), ("label", (n, 1)), inputs_need_grad=True)
    real, fake = mx.nd.ones((n, 1)), mx.nd.zeros((n, 1))

    for epoch in range(args.num_epochs):
        train.reset()
        right = []
        for batch in train:
            made_from = mx.nd.random.normal(0, 1, shape=(n, CODE, 1, 1))
            gen.forward(mx.io.DataBatch([made_from], []), is_train=True)
            made = gen.get_outputs()[0].copy()
            # The discriminator learns from both; its gradients of the two batches are added.
            dis.forward(mx.io.DataBatch([made], [fake]), is_train=True)
            dis.backward()
            kept = [[array.copy() for array in arrays] for arrays in dis._exec_group.grad_arrays]
            right.append((dis.get_outputs()[0].asnumpy() < 0.5).mean())
            dis.forward(mx.io.DataBatch(batch.data, [real]), is_train=True)
            dis.backward()
            for arrays, olds in zip(dis._exec_group.grad_arrays, kept, strict=True):
                for array, old in zip(arrays, olds, strict=True):
                    array += old
            dis.update()
            right.append((dis.get_outputs()[0].asnumpy() > 0.5).mean())
            # The generator learns from what would have made its pictures pass for real.
            dis.forward(mx.io.DataBatch([made], [real]), is_train=True)
            dis.backward()
            gen.backward(dis.get_input_grads())
            gen.update()
        logging.info("Epoch[%d] the discriminator is right in %.3f", epoch, np.mean(right))
    ink = made.asnumpy().clip(-1, 1) / 2 + 0.5
    print(f"ink={ink.mean():.3f} real_ink={pictures.mean():.3f}")


if __name__ == "__main__":
    main()
