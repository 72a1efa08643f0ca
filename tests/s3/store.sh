#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What every store must do, on a real S3 server.
# run: timeout=300
exec "$BIN/tests/ckpt/test_store"
