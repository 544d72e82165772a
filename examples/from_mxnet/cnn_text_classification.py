"""Sentences to classes by convolutions of three widths; the loop is written out: bind, forward, backward, updater.

    python examples/from_mxnet/cnn_text_classification.py
"""

import argparse

import numpy as np
import synthetic

import arrayexec.compat.mxnet as mx

WORDS, VOCABULARY = 24, 200


def network(embed, filters, dropout):
    net = mx.sym.Embedding(mx.sym.Variable("data"), input_dim=VOCABULARY, output_dim=embed, name="vocab_embed")
    net = mx.sym.Reshape(net, shape=(-1, 1, WORDS, embed))
    pooled = []
    for width in (2, 3, 4):
        found = mx.sym.Convolution(net, kernel=(width, embed), num_filter=filters, name=f"conv{width}")
        found = mx.sym.Activation(found, act_type="relu")
        pooled.append(mx.sym.Pooling(found, pool_type="max", kernel=(WORDS - width + 1, 1), stride=(1, 1)))
    net = mx.sym.Reshape(mx.sym.Concat(*pooled, dim=1), shape=(-1, 3 * filters))
    net = mx.sym.Dropout(net, p=dropout)
    net = mx.sym.FullyConnected(net, num_hidden=2, name="cls")
    return mx.sym.SoftmaxOutput(net, mx.sym.Variable("softmax_label"), name="softmax")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=50)
    parser.add_argument("--max-grad-norm", type=float, default=5.0)
    args = parser.parse_args()
    mx.random.seed(1)

    n = args.batch_size
    symbol = network(embed=16, filters=16, dropout=0.3)
    names = symbol.list_arguments()
    shapes, _, _ = symbol.infer_shape(data=(n, WORDS))
    arrays = {name: mx.nd.zeros(shape) for name, shape in zip(names, shapes, strict=True)}
    inputs = ("data", "softmax_label")
    grads = {name: mx.nd.zeros(array.shape) for name, array in arrays.items() if name not in inputs}
    executor = symbol.bind(ctx=mx.cpu(), args=arrays, args_grad=grads, grad_req="add")
    initializer = mx.init.Uniform(0.1)
    parameters = [(index, name) for index, name in enumerate(names) if name not in inputs]
    for _, name in parameters:
        initializer(mx.init.InitDesc(name), executor.arg_dict[name])
    optimizer = mx.optimizer.create("adam", learning_rate=2e-3, rescale_grad=1.0 / n)
    updater = mx.optimizer.get_updater(optimizer)

    train, test = (synthetic.opinions(count, WORDS, VOCABULARY, seed) for count, seed in ((2000, 0), (500, 1)))
    for epoch in range(args.num_epochs):
        right = 0
        for start in range(0, len(train[0]), n):
            executor.arg_dict["data"][:] = train[0][start : start + n]
            executor.arg_dict["softmax_label"][:] = train[1][start : start + n]
            executor.forward(is_train=True)
            executor.backward()
            right += (executor.outputs[0].asnumpy().argmax(axis=1) == train[1][start : start + n]).sum()
            norms = [float(mx.nd.norm(executor.grad_dict[name]).asscalar()) for _, name in parameters]
            norm = np.linalg.norm(norms) / n
            for index, name in parameters:
                grad = executor.grad_dict[name]
                if norm > args.max_grad_norm:
                    grad *= args.max_grad_norm / norm
                updater(index, grad, executor.arg_dict[name])
                grad[:] = 0
        print(f"epoch {epoch}: accuracy of training {right / len(train[0]):.3f}")

    right = 0
    for start in range(0, len(test[0]), n):
        output = executor.forward(is_train=False, data=mx.nd.array(test[0][start : start + n]))[0]
        right += (output.asnumpy().argmax(axis=1) == test[1][start : start + n]).sum()
    print("accuracy=%.4f" % (right / len(test[0])))


if __name__ == "__main__":
    main()
