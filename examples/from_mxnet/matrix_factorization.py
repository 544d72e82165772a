"""Ratings from two tables of vectors: two inputs by name, squared error.

    python examples/from_mxnet/matrix_factorization.py --factors 8
"""

import argparse
import logging

import synthetic

import arrayexec.compat.mxnet as mx

USERS, ITEMS = 60, 40


def network(factors):
    user = mx.sym.Embedding(mx.sym.Variable("user"), input_dim=USERS, output_dim=factors, name="user_table")
    item = mx.sym.Embedding(mx.sym.Variable("item"), input_dim=ITEMS, output_dim=factors, name="item_table")
    score = mx.sym.sum_axis(user * item, axis=1)
    score = mx.sym.Flatten(score)
    return mx.sym.LinearRegressionOutput(score, mx.sym.Variable("score"), name="rating")


def iterator(count, seed, batch_size):
    user, item, score = synthetic.ratings(count, USERS, ITEMS, seed=seed)
    return mx.io.NDArrayIter({"user": user, "item": item}, {"score": score}, batch_size, shuffle=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--factors", type=int, default=8)
    parser.add_argument("--num-epochs", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=64)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    mx.random.seed(1)

    train, test = iterator(6000, 0, args.batch_size), iterator(1000, 1, args.batch_size)
    module = mx.mod.Module(network(args.factors), data_names=["user", "item"], label_names=["score"], context=mx.cpu())
    module.fit(
        train,
        eval_data=test,
        eval_metric="rmse",
        optimizer="adam",
        optimizer_params={"learning_rate": 0.02, "wd": 1e-4},
        initializer=mx.init.Normal(0.3),
        num_epoch=args.num_epochs,
    )
    print("rmse={:.3f}".format(dict(module.score(test, "rmse"))["rmse"]))


if __name__ == "__main__":
    main()
