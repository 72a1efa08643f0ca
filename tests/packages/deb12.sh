#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The packages of Debian 12, built and installed in clean roots.
# run: timeout=3600
suite=bookworm
. "$TOP/tests/packages/lib/deb.sh"
