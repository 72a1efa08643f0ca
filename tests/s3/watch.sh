#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# ckpt-merge --watch from a store to a store, and from a folder to a store: tests/ckpt/watch.sh.
# run: timeout=900
export WATCH_OUT=$S3_TEST_URL/watch-$$/weights
case ${WATCH_FROM:-store} in
store) export WATCH_RUN=$S3_TEST_URL/watch-$$/run ;;
esac
. "$TOP/tests/ckpt/watch.sh"
