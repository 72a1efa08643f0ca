#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The packages of Debian 13, built and installed in clean roots.
# run: timeout=3600
suite=trixie
. "$TOP/tests/packages/lib/deb.sh"
