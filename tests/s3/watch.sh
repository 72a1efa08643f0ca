#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# ckpt-merge --watch from a store to a store: tests/ckpt/watch.sh.
# run: long
# run: timeout=900
export WATCH_KEEP=4 # a run of milliseconds a step removes checkpoints faster than they are read here
export WATCH_END=20 # nothing in a store says that a run is done
export WATCH_OUT=$S3_TEST_URL/watch-$$/weights
export WATCH_RUN=$S3_TEST_URL/watch-$$/run
. "$TOP/tests/ckpt/watch.sh"
