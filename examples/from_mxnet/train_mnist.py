"""Image classification with Module.fit: an MLP or LeNet on pictures of digits.

    python examples/from_mxnet/train_mnist.py --network lenet --num-epochs 4
    python examples/from_mxnet/train_mnist.py --model-prefix /tmp/digits --load-epoch 2     # go on from a checkpoint
    mpirun -n 2 python examples/from_mxnet/train_mnist.py --kv-store dist_sync
"""

import argparse
import logging

import synthetic

import arrayexec.compat.mxnet as mx


def mlp(classes):
    net = mx.sym.Flatten(mx.sym.Variable("data"))
    net = mx.sym.FullyConnected(net, num_hidden=128, name="fc1")
    net = mx.sym.Activation(net, act_type="relu", name="relu1")
    net = mx.sym.FullyConnected(net, num_hidden=64, name="fc2")
    net = mx.sym.Activation(net, act_type="relu", name="relu2")
    net = mx.sym.FullyConnected(net, num_hidden=classes, name="fc3")
    return mx.sym.SoftmaxOutput(net, name="softmax")


def lenet(classes):
    net = mx.sym.Variable("data")
    for number, filters in enumerate((20, 50), 1):
        net = mx.sym.Convolution(net, kernel=(5, 5), num_filter=filters, name=f"conv{number}")
        net = mx.sym.Activation(net, act_type="tanh")
        net = mx.sym.Pooling(net, pool_type="max", kernel=(2, 2), stride=(2, 2))
    net = mx.sym.FullyConnected(mx.sym.Flatten(net), num_hidden=500, name="fc1")
    net = mx.sym.Activation(net, act_type="tanh")
    net = mx.sym.FullyConnected(net, num_hidden=classes, name="fc2")
    return mx.sym.SoftmaxOutput(net, name="softmax")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", choices=("mlp", "lenet"), default="mlp")
    parser.add_argument("--num-examples", type=int, default=2000)
    parser.add_argument("--num-epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=50)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--gpus", help="list of GPUs, such as 0 or 0,2; default: the CPU")
    parser.add_argument("--kv-store", default="local")
    parser.add_argument("--model-prefix")
    parser.add_argument("--load-epoch", type=int)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    mx.random.seed(1)

    kv = mx.kvstore.create(args.kv_store)
    images, labels = synthetic.digits(args.num_examples, seed=0)
    train = mx.io.NDArrayIter(
        images[kv.rank :: kv.num_workers], labels[kv.rank :: kv.num_workers], args.batch_size, shuffle=True
    )
    test = mx.io.NDArrayIter(*synthetic.digits(500, seed=1), batch_size=args.batch_size)

    context = [mx.gpu(int(number)) for number in args.gpus.split(",")] if args.gpus else mx.cpu()
    if args.load_epoch is None:
        net, arg_params, aux_params = {"mlp": mlp, "lenet": lenet}[args.network](10), None, None
    else:
        net, arg_params, aux_params = mx.model.load_checkpoint(args.model_prefix, args.load_epoch)
    module = mx.mod.Module(net, context=context)
    steps = args.num_examples // args.batch_size // kv.num_workers
    module.fit(
        train,
        eval_data=test,
        eval_metric=["accuracy", mx.metric.TopKAccuracy(top_k=3)],
        kvstore=kv,
        optimizer="sgd",
        optimizer_params={
            "learning_rate": args.lr,
            "momentum": 0.9,
            "wd": 1e-4,
            "lr_scheduler": mx.lr_scheduler.FactorScheduler(step=4 * steps, factor=0.3),
        },
        initializer=mx.init.Xavier(magnitude=2.24),
        arg_params=arg_params,
        aux_params=aux_params,
        begin_epoch=args.load_epoch or 0,
        num_epoch=args.num_epochs,
        batch_end_callback=mx.callback.Speedometer(args.batch_size, 20),
        epoch_end_callback=mx.callback.do_checkpoint(args.model_prefix) if args.model_prefix else None,
    )
    print("accuracy={:.4f}".format(dict(module.score(test, mx.metric.create("acc")))["accuracy"]))


if __name__ == "__main__":
    main()
